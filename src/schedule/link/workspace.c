/* workspace.c -- memory that a device takes beside the tensors of programs: scratch of kernels,
 * lists of the optimizer, scalars of a step.
 *
 *     arena kernels   the most that an instruction of the list may take, at full extents
 *     arena step      lists of the sums of squares, one per round; of the updates, one per pack
 *     pinned          the end of the step arena once more, on the host; the staging buffer
 *
 * device/workspace.h knows the sizes. */
#include "schedule/link/link_parts.h"
#include "base/math.h"
#include "ir/ops.h"

bool linked_owned_next(const LinkedProgram *lp, int pack, OwnedPart *p)
{
    const PackMemory *of = &lp->pack[pack];
    while (p->span < of->n_owned) {
        const Span span = of->owned[p->span];
        const int64_t lo = p->hi < 0 ? span.lo : p->hi;
        if (lo < span.hi) {
            const int64_t block = lo / lp->block;
            p->round = block == p->block ? p->round + 1 : 0;
            p->block = block;
            p->lo = lo;
            p->hi = min_i64((block + 1) * lp->block, span.hi);
            return true;
        }
        p->span++;
        p->hi = -1;
    }
    return false;
}

/* ---- scratch ---- */

/* The call of an instruction at full extents, without data. */
static Call shape_of(const Program *p, const Instr *in)
{
    Call c = {.n_in = in->n_in, .n_out = in->n_out, .attr = in->attr.kernel};
    for (int i = 0; i < in->n_in + in->n_out; i++) {
        const ProgTensor *t = &p->tensor[i < in->n_in ? in->in[i] : in->out[i - in->n_in]];
        Tensor *x = i < in->n_in ? &c.in[i] : &c.out[i - in->n_in];
        *x = (Tensor){.dtype = t->dtype, .ndim = t->ndim};
        for (int d = 0; d < t->ndim; d++) {
            x->n[d] = t->dim[d].cap;
            x->stride[d] = t->stride[d];
        }
    }
    return c;
}

static size_t phase_scratch(const DeviceWorkspace *w, const Program *p, Phase phase)
{
    size_t most = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        const KernelId kernel = op_info(in->op)->kernel;
        if (in->queue != QUEUE_COMPUTE || kernel == KERNEL_NONE) continue;
        const Call call = shape_of(p, in);
        most = max_size(most, w->scratch(kernel, &call));
    }
    return most;
}

/* The programs of a list are few, its actions many: each (class, variant, phase) is asked once. */
static Err most_scratch(const Linker *k, Arena *temp, size_t *out)
{
    const LinkedProgram *lp = k->lp;
    const Program **seen;
    uint8_t *phases;
    const size_t mark = arena_mark(temp);
    int n = 0;
    *out = 0;
    TRY(ARENA_NEW(temp, lp->n + 1, &seen));
    TRY(ARENA_NEW(temp, lp->n + 1, &phases));
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        int s = 0;
        if (!l->program) continue;
        while (s < n && seen[s] != l->program) s++;
        if (s == n) {
            phases[n] = 0;
            seen[n++] = l->program;
        }
        if (phases[s] >> l->action.phase & 1) continue;
        phases[s] = (uint8_t)(phases[s] | 1u << l->action.phase);
        *out = max_size(*out, phase_scratch(k->in->workspace, l->program, (Phase)l->action.phase));
    }
    arena_rewind(temp, mark);
    return OK;
}

Err link_workspace(Linker *k, Arena *temp)
{
    LinkedProgram *lp = k->lp;
    size_t bytes;
    if (!k->in->workspace) return OK;
    TRY(most_scratch(k, temp, &bytes));
    lp->bytes[ARENA_KERNELS] = lp->live[ARENA_KERNELS] = align_up(max_size(bytes, 1));
    lp->pinned_bytes = lp->bytes[ARENA_STEP] - lp->input[0] + STAGING_BYTES;
    return OK;
}

/* ---- lists ---- */

/* Bounds by the size of a home alone, which ranks of a class share: a home has at most one piece of
 * each parameter. */
static int64_t most_pieces(const LinkedProgram *lp, int pack)
{
    return home_count(&lp->pack[pack]) > 0 ? lp->model->pack[pack].n_params : 0;
}

/* All rounds. Spans of a block are in different ones: at most one for each parameter of the pack.
 * The arrays of a round end at LIST_ALIGN, and each has one more number. */
static size_t squares_bytes(const Linker *k)
{
    enum { ARRAYS = 4 };
    const LinkedProgram *lp = k->lp;
    const DeviceListShape *s = &k->in->workspace->squares;
    int64_t n = 0, blocks = 0, rounds = 1;
    for (int pack = 0; pack < lp->model->n_packs; pack++) {
        const int64_t count = home_count(&lp->pack[pack]), pieces = most_pieces(lp, pack);
        if (lp->model->pack[pack].rule != PARAM_BY_OPTIMIZER || count == 0) continue;
        n += count / lp->block + 1 + pieces;
        blocks += count / s->chunk + count / lp->block + 1 + pieces;
        rounds = max_i64(rounds, pieces);
    }
    return list_layout(s, n, blocks).end + (size_t)rounds * (ARRAYS * LIST_ALIGN);
}

static size_t update_bytes(const Linker *k, int pack)
{
    const DeviceListShape *s = &k->in->workspace->update;
    const int64_t n = most_pieces(k->lp, pack);
    const int64_t blocks = home_count(&k->lp->pack[pack]) / s->chunk + n;
    return n > 0 ? list_layout(s, n, blocks).end : 0;
}

void place_lists(Linker *k, size_t *at)
{
    LinkedProgram *lp = k->lp;
    bool norm = false;
    for (int i = 0; k->in->workspace && i < lp->n; i++) {
        const Action *a = &lp->list[i].action; /* one UPDATE of each pack, one NORM */
        if (a->kind == A_NORM && !norm) lp->list_bytes += squares_bytes(k);
        if (a->kind == A_UPDATE) lp->list_bytes += update_bytes(k, a->unit);
        norm = norm || a->kind == A_NORM;
    }
    lp->lists = link_take(at, lp->list_bytes);
}
