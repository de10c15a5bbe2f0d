/* program_check.c -- proofs about a program before it runs: every operand is there when it is read,
 * nothing is written over while it is needed, what is begun is waited for. */
#include "ir/program.h"

#include <string.h>

typedef struct {
    const Program *p;
    const Instr *instr;
    int at; /* index of instr, for messages */
} Where;

static Err bad(const Where *w, int32_t tensor, const char *what)
{
    const bool known = tensor >= 0 && tensor < w->p->n_tensors;
    return err_fail(ERR_CHECK, "program %s: %s %d, %s, tensor %%%d %s: %s", w->p->kind,
                    phase_name(w->instr->phase), w->at - w->p->first[w->instr->phase],
                    op_info(w->instr->op)->name, tensor, known ? w->p->tensor[tensor].name : "",
                    what);
}

static int mode_of(Phase phase) { return phase == PHASE_B ? MERGED : SPLIT; }

size_t tensor_bytes(const ProgTensor *t)
{
    size_t bytes = dtype_bytes(t->dtype);
    for (int i = 0; i < t->ndim; i++) bytes *= (size_t)t->dim[i].cap;
    return bytes;
}

const char *region_name(Region r)
{
    static const char *const name[N_REGIONS] = {"scratch", "frame-i", "frame-w", "carry", "host",
                                                "y",       "dx",      "x",       "dy",    "param",
                                                "dparam",  "input",   "loss",    "arg"};
    return name[r];
}

static const ProgTensor *root_of(const Program *p, int32_t t)
{
    return &p->tensor[p->tensor[t].view_of];
}

static bool begins(const Instr *i) { return i->op == OP_copy_out || i->op == OP_copy_in; }

static Err check_bounds(const Where *w, int32_t t)
{
    if (t < 0 || t >= w->p->n_tensors) return bad(w, t, "there is no such tensor");
    const ProgTensor *root = root_of(w->p, t);
    const Place at = root->at[mode_of(w->instr->phase)];
    if (at.region >= N_OWN_REGIONS) return OK;
    const size_t room =
        at.region == REGION_SCRATCH ? w->p->scratch_bytes[w->instr->phase] : w->p->bytes[at.region];
    if (at.offset + tensor_bytes(root) > room) return bad(w, t, "it reaches past its region");
    if (at.offset % ARENA_ALIGN) return bad(w, t, "it is not aligned");
    return OK;
}

/* What others gave is read, never written. */
static bool is_lent(const ProgTensor *t)
{
    const uint8_t r = t->at[SPLIT].region;
    return r == REGION_X || r == REGION_DY || r == REGION_PARAM || r == REGION_INPUT;
}

static Err check_instr(const Where *w)
{
    const Instr *i = w->instr;
    for (int k = 0; k < i->n_in; k++) TRY(check_bounds(w, i->in[k]));
    for (int k = 0; k < i->n_out; k++) {
        TRY(check_bounds(w, i->out[k]));
        if (is_lent(&w->p->tensor[i->out[k]])) return bad(w, i->out[k], "it is not its to write");
    }
    for (int k = 0; k < i->n_out; k++)
        if (i->keep[k] < 0 || i->keep[k] >= N_SLOTS)
            return bad(w, i->out[k], "its slot does not exist");
    if ((unsigned)i->queue >= N_QUEUES) return bad(w, i->out[0], "there is no such queue");
    if (begins(i) == (i->queue == QUEUE_COMPUTE))
        return bad(w, i->out[0], "the op is on the wrong queue");
    for (int k = 0; k < i->n_in; k++)
        if (i->queue == QUEUE_COMPUTE && i->op != OP_wait &&
            w->p->tensor[i->in[k]].space != SPACE_DEVICE)
            return bad(w, i->in[k], "it lies in the host's memory");
    return OK;
}

/* Walks phases in an order they run in; state[root]: 0 not written, 1 begun, 2 there. */
static Err check_reads(const Program *p, const Phase *phase, int n, char *state)
{
    for (int t = 0; t < p->n_tensors; t++) {
        const uint8_t region = p->tensor[t].at[SPLIT].region;
        state[t] = region >= N_OWN_REGIONS ? 2 : 0;
    }
    for (int k = 0; k < n; k++) {
        for (int i = p->first[phase[k]]; i < p->first[phase[k] + 1]; i++) {
            const Where w = {p, &p->instr[i], i};
            for (int j = 0; j < w.instr->n_in; j++) {
                char *s = &state[p->tensor[w.instr->in[j]].view_of];
                if (*s == 0) return bad(&w, w.instr->in[j], "it is read before it is written");
                if (*s == 1 && w.instr->op != OP_wait)
                    return bad(&w, w.instr->in[j], "it is read before the wait");
                if (w.instr->op == OP_wait) *s = 2;
            }
            for (int j = 0; j < w.instr->n_out && w.instr->op != OP_wait; j++)
                state[p->tensor[w.instr->out[j]].view_of] = begins(w.instr) ? 1 : 2;
        }
        for (int t = 0; t < p->n_tensors; t++)
            if (state[t] == 1)
                return err_fail(
                    ERR_CHECK,
                    "program %s: phase %s ends before tensor %%%d %s, begun in it, is waited for",
                    p->kind, phase_name(phase[k]), t, p->tensor[t].name);
    }
    return OK;
}

/* First and last instruction of a phase that touches each root; what is begun is touched by its
 * wait. */
static void lives_of(const Program *p, Phase phase, int *first, int *last)
{
    for (int t = 0; t < p->n_tensors; t++) first[t] = last[t] = -1;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        int until = i;
        for (int k = i; begins(in) && k < p->first[phase + 1]; k++)
            if (p->instr[k].op == OP_wait && p->instr[k].in[0] == in->out[0]) until = k;
        for (int j = 0; j < in->n_in + in->n_out; j++) {
            const int t = p->tensor[j < in->n_in ? in->in[j] : in->out[j - in->n_in]].view_of;
            if (first[t] < 0) first[t] = i;
            if (last[t] < until) last[t] = until;
        }
    }
}

static Err check_overlap(const Program *p, Phase phase, int *first, int *last)
{
    const int mode = mode_of(phase);
    lives_of(p, phase, first, last);
    for (int a = 0; a < p->n_tensors; a++) {
        const Place x = p->tensor[a].at[mode];
        if (first[a] < 0 || x.region >= N_OWN_REGIONS) continue;
        for (int b = a + 1; b < p->n_tensors; b++) {
            const Place y = p->tensor[b].at[mode];
            if (first[b] < 0 || y.region != x.region) continue;
            const bool apart = x.offset + tensor_bytes(&p->tensor[a]) <= y.offset ||
                               y.offset + tensor_bytes(&p->tensor[b]) <= x.offset;
            const bool after =
                x.region == REGION_SCRATCH && (last[a] < first[b] || last[b] < first[a]);
            if (!apart && !after)
                return err_fail(ERR_CHECK,
                                "program %s: phase %s: tensors %%%d %s and %%%d %s share bytes of "
                                "%s while both live",
                                p->kind, phase_name(phase), a, p->tensor[a].name, b,
                                p->tensor[b].name, region_name(x.region));
        }
    }
    return OK;
}

Err program_check(const Program *p)
{
    static const Phase split[] = {PHASE_F, PHASE_I, PHASE_W}, merged[] = {PHASE_F, PHASE_B};
    Arena temp;
    char *state;
    int *first, *last;
    TRY(arena_open(&temp, "program check", (size_t)1 << 28));
    Err err = ARENA_NEW(&temp, p->n_tensors + 1, &state);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &first);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &last);
    for (int i = 0; i < p->n_instr && err == OK; i++)
        err = check_instr(&(Where){p, &p->instr[i], i});
    if (err == OK) err = check_reads(p, split, 3, state);
    if (err == OK) err = check_reads(p, merged, 2, state);
    for (int k = 0; k < N_PHASES && err == OK; k++) err = check_overlap(p, (Phase)k, first, last);
    arena_close(&temp);
    return err;
}
