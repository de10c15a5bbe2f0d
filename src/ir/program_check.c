/* program_check.c -- proofs about a program before it runs: every operand exists when it is read,
 * no tensor is overwritten while it is needed, and every transfer that begins is waited for. A body
 * of further rounds is a program with its own proof; here it must fit the instruction that runs
 * it. */
#include "ir/program.h"

#include <string.h>

typedef struct {
    const Program *p;
    const Instr *instr;
    int at; /* index of instr, for messages */
} InstrRef;

static Err bad(const InstrRef *w, int32_t tensor, const char *what)
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
    static const char *const name[N_REGIONS] = {"scratch", "frame-i", "frame-w", "carry",  "host",
                                                "y",       "dx",      "micro",   "dmicro", "x",
                                                "dy",      "param",   "scale",   "dparam", "input",
                                                "loss",    "stat",    "session", "arg"};
    return name[r];
}

static const ProgTensor *root_of(const Program *p, int32_t t)
{
    return &p->tensor[p->tensor[t].view_of];
}

static bool begins(const Instr *i) { return op_begins(i->op); }

/* The elements of its root that a tensor covers, as rows: [row, row_end) x [column, column_end). A
 * tensor that is no such box counts as all of the root. */
typedef struct {
    int64_t row, row_end, column, column_end;
} TensorBox;

static TensorBox tensor_box(const Program *p, int32_t t)
{
    const ProgTensor *x = &p->tensor[t], *root = root_of(p, t);
    const int64_t rows = root->dim[0].cap, element = (int64_t)dtype_bytes(root->dtype);
    const int64_t width = rows ? (int64_t)tensor_bytes(root) / element / rows : 0;
    const int64_t from = (int64_t)(x->at[SPLIT].offset - root->at[SPLIT].offset) / element;
    int64_t last = 0;
    for (int i = 1; i < x->ndim; i++) last += (x->dim[i].cap - 1) * x->stride[i];
    if (!width || x->stride[0] != width || from % width + last >= width)
        return (TensorBox){0, rows, 0, width};
    return (TensorBox){from / width, from / width + x->dim[0].cap, from % width,
                       from % width + last + 1};
}

static bool overlap(const Program *p, int32_t t, int32_t u)
{
    if (p->tensor[t].view_of != p->tensor[u].view_of) return false;
    const TensorBox a = tensor_box(p, t), b = tensor_box(p, u);
    return a.row < b.row_end && b.row < a.row_end && a.column < b.column_end &&
           b.column < a.column_end;
}

static Err check_bounds(const InstrRef *w, int32_t t)
{
    if (t < 0 || t >= w->p->n_tensors) return bad(w, t, "there is no such tensor");
    const ProgTensor *x = &w->p->tensor[t];
    if (x->view_of < 0 || x->view_of >= w->p->n_tensors || x->shows < 0 ||
        x->shows >= w->p->n_tensors)
        return bad(w, t, "it is a view of a tensor that does not exist");
    const ProgTensor *root = root_of(w->p, t);
    if (tensor_box(w->p, t).row_end > root->dim[0].cap ||
        x->at[SPLIT].offset < root->at[SPLIT].offset)
        return bad(w, t, "it reaches past the tensor that it is a view of");
    const Place at = root->at[mode_of(w->instr->phase)];
    if (at.region >= N_OWN_REGIONS && at.region != REGION_SESSION) return OK;
    const size_t room = at.region == REGION_SCRATCH   ? w->p->scratch_bytes[w->instr->phase]
                        : at.region == REGION_SESSION ? w->p->session_bytes
                                                      : w->p->bytes[at.region];
    if (at.offset + tensor_bytes(root) > room) return bad(w, t, "it reaches past its region");
    if (at.offset % ARENA_ALIGN) return bad(w, t, "it is not aligned");
    return OK;
}

/* True for memory that another owner provides: it is read, never written. */
static bool is_read_only(const ProgTensor *t)
{
    const uint8_t r = t->at[SPLIT].region;
    return r == REGION_X || r == REGION_DY || r == REGION_PARAM || r == REGION_SCALE ||
           r == REGION_INPUT;
}

/* ERR_CHECK if elements of a message are not contiguous: transfers send a count from an address. */
static Err check_dense(const InstrRef *w, int32_t tensor)
{
    const ProgTensor *t = &w->p->tensor[tensor];
    int64_t step = 1;
    if (tensor_bytes(t) == 0) return OK;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i].cap > 1 && t->stride[i] != step)
            return bad(w, tensor, "it is moved between ranks, but is not contiguous");
        step *= t->dim[i].cap;
    }
    return OK;
}

/* The operand of an instruction that loops for argument `index` of its body, or NULL. */
static const ProgTensor *argument(const InstrRef *w, int32_t index)
{
    const Instr *i = w->instr;
    if (index < 0 || index >= i->n_in + i->n_out) return NULL;
    return &w->p->tensor[index < i->n_in ? i->in[index] : i->out[index - i->n_in]];
}

/* Its arguments have the operands' types and shapes, its scratch fits the region, its sums of
 * gradients are operands, and it runs no other body. */
static Err check_body(const InstrRef *w, const Program *body, int region)
{
    const Instr *i = w->instr;
    if (body->first[PHASE_F + 1] != body->n_instr || body->n_bodies)
        return bad(w, i->out[0], "its body is not of F alone");
    if (body->scratch_bytes[PHASE_F] > tensor_bytes(&w->p->tensor[i->out[region]]))
        return bad(w, i->out[region], "it is too small for the scratch of its body");
    for (int k = 0; k < body->n_instr; k++)
        for (int j = 0; j < body->instr[k].n_in + body->instr[k].n_out; j++) {
            const int of = j - body->instr[k].n_in;
            const ProgTensor *t =
                &body->tensor[of < 0 ? body->instr[k].in[j] : body->instr[k].out[of]];
            const ProgTensor *o = argument(w, t->index);
            if (t->at[SPLIT].region != REGION_ARG) continue;
            if (!o || o->dtype != t->dtype || tensor_bytes(o) != tensor_bytes(t))
                return bad(w, i->out[0], "an argument of its body is not an operand");
        }
    return OK;
}

/* A sum of gradients that a loop adds to was begun before, in the same list: the loop may run no
 * round, and then nobody else would begin it. */
static Err check_begun(const InstrRef *w)
{
    for (int k = 0; k < w->instr->n_out; k++) {
        const int32_t t = w->instr->out[k];
        bool begun = w->p->tensor[t].at[SPLIT].region != REGION_DPARAM;
        for (int i = w->p->first[w->instr->phase]; i < w->at && !begun; i++)
            for (int j = 0; j < w->p->instr[i].n_out; j++)
                begun = begun || w->p->instr[i].out[j] == t;
        if (!begun) return bad(w, t, "further rounds add to it before round 1 has begun it");
    }
    return OK;
}

static Err check_loop(const InstrRef *w)
{
    const Instr *i = w->instr;
    const int at = i->op == OP_rounds_back ? i->attr.rounds.merged : i->attr.rounds.body;
    if (!op_loops(i->op)) return OK;
    if (at < 0 || at >= w->p->n_bodies) return bad(w, i->out[0], "there is no such body");
    TRY(check_begun(w));
    return check_body(w, w->p->body[at], instr_region(i));
}

static Err check_instr(const InstrRef *w)
{
    const Instr *i = w->instr;
    if (w->at < w->p->first[i->phase] || w->at >= w->p->first[i->phase + 1])
        return bad(w, i->out[0], "it stands in the list of another phase");
    for (int k = 0; k < i->n_in; k++) TRY(check_bounds(w, i->in[k]));
    for (int k = 0; k < i->n_out; k++) {
        TRY(check_bounds(w, i->out[k]));
        if (is_read_only(&w->p->tensor[i->out[k]])) return bad(w, i->out[k], "it is read-only");
    }
    for (int k = 0; k < i->n_out; k++)
        if (i->keep[k] < 0 || i->keep[k] >= N_SLOTS)
            return bad(w, i->out[k], "its slot does not exist");
    if (op_transfers(i->op) || i->op == OP_pack) {
        if (i->op != OP_recv) TRY(check_dense(w, i->in[0]));
        TRY(check_dense(w, i->out[0]));
    }
    TRY(check_loop(w));
    if ((unsigned)i->queue >= N_QUEUES) return bad(w, i->out[0], "there is no such queue");
    if (begins(i) == (i->queue == QUEUE_COMPUTE))
        return bad(w, i->out[0], "the op is on the wrong queue");
    for (int k = 0; k < i->n_in; k++)
        if (i->queue == QUEUE_COMPUTE && i->op != OP_wait &&
            w->p->tensor[i->in[k]].space != SPACE_DEVICE)
            return bad(w, i->in[k], "it is in host memory");
    return OK;
}

/* The state of bytes while phases run. For a root: whether anything was written to it. For a tensor
 * whose value an instruction makes: whether its bytes still hold that value. */
typedef enum { NOT_YET, BEGUN, THERE, WRITTEN_OVER } Content;

typedef struct {
    const Program *p;
    uint8_t *root, *own; /* [n_tensors] Content */
    bool *is_made;       /* [n_tensors]: some instruction writes it */
} Contents;

/* Records a write to t. Views of t, also empty ones, show the new value; other tensors that overlap
 * it are lost. */
static void write_tensor(Contents *c, int32_t t, Content content)
{
    for (int u = 0; u < c->p->n_tensors; u++) {
        if (c->p->tensor[u].shows == t)
            c->own[u] = (uint8_t)content;
        else if (c->own[u] != NOT_YET && overlap(c->p, t, u))
            c->own[u] = WRITTEN_OVER;
    }
    c->root[c->p->tensor[t].view_of] = (uint8_t)content;
}

static Err check_read(Contents *c, const InstrRef *w, int32_t t)
{
    const ProgTensor *x = &c->p->tensor[t];
    const uint8_t content = c->is_made[x->shows] ? c->own[t] : c->root[x->view_of];
    if (content == NOT_YET) return bad(w, t, "it is read before it is written");
    if (content == WRITTEN_OVER) return bad(w, t, "it is read after it was written over");
    if (content == BEGUN && w->instr->op != OP_wait) return bad(w, t, "it is read before the wait");
    if (w->instr->op == OP_wait) write_tensor(c, x->shows, THERE); /* now it is done */
    return OK;
}

static void open_contents(Contents *c)
{
    for (int t = 0; t < c->p->n_tensors; t++) {
        const bool given = c->p->tensor[t].at[SPLIT].region >= N_OWN_REGIONS;
        c->own[t] = c->root[t] = given ? THERE : NOT_YET;
    }
    for (int i = 0; i < c->p->n_instr; i++)
        for (int j = 0; j < c->p->instr[i].n_out && c->p->instr[i].op != OP_wait; j++)
            c->is_made[c->p->instr[i].out[j]] = true;
}

/* Walks phases in an order in which they may run. */
static Err check_reads(Contents *c, const Phase *phase, int n)
{
    const Program *p = c->p;
    open_contents(c);
    for (int k = 0; k < n; k++) {
        for (int i = p->first[phase[k]]; i < p->first[phase[k] + 1]; i++) {
            const InstrRef w = {p, &p->instr[i], i};
            for (int j = 0; j < w.instr->n_in; j++) TRY(check_read(c, &w, w.instr->in[j]));
            for (int j = 0; j < w.instr->n_out && w.instr->op != OP_wait; j++)
                write_tensor(c, w.instr->out[j], begins(w.instr) ? BEGUN : THERE);
        }
        for (int t = 0; t < p->n_tensors; t++)
            if (c->root[t] == BEGUN)
                return err_fail(
                    ERR_CHECK,
                    "program %s: phase %s ends before the wait for tensor %%%d %s, which it began",
                    p->kind, phase_name(phase[k]), t, p->tensor[t].name);
    }
    return OK;
}

/* The first and last instruction of a phase that touches each root. The wait for a transfer touches
 * the roots of the transfer. */
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
        if (first[a] < 0 || (x.region >= N_OWN_REGIONS && x.region != REGION_SESSION)) continue;
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
    Contents c = {.p = p};
    int *first, *last;
    TRY(arena_open(&temp, "program check", (size_t)1 << 28));
    Err err = ARENA_NEW(&temp, p->n_tensors + 1, &c.root);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &c.own);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &c.is_made);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &first);
    if (err == OK) err = ARENA_NEW(&temp, p->n_tensors + 1, &last);
    for (int i = 0; i < p->n_instr && err == OK; i++)
        err = check_instr(&(InstrRef){p, &p->instr[i], i});
    if (err == OK) err = check_reads(&c, split, 3);
    if (err == OK) err = check_reads(&c, merged, 2);
    for (int k = 0; k < N_PHASES && err == OK; k++) err = check_overlap(p, (Phase)k, first, last);
    arena_close(&temp);
    return err;
}
