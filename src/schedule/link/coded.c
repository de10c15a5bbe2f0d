/* coded.c -- coded weights: where the scales of each are, and the ranks that share them.
 *
 *     pack        q [64, 96]  k [32, 96]  o [96, 64]      programs read q and k as one, [96, 96]
 *     scales      q, k: 1 cell            o: 1 cell       or a cell for each 128 x 128 elements
 *     homes       |dp 0      |dp 1      |dp 2             a home has parts of cells
 *
 * Cells are those of the rank's use shard. Ranks that shard the weights at home have parts of them,
 * and, of a scale for a whole weight, ranks along the model axes too. QUANTIZE makes a maximum over
 * these ranks of all cells of a view and kind in one all-reduce. */
#include "schedule/link/link_parts.h"

/* The tensor by which a program reads parameters, or NULL. */
static const ProgTensor *tensor_of(const Program *p, Region region, int index)
{
    for (int32_t i = 0; i < p->n_tensors; i++) {
        const ProgTensor *t = &p->tensor[i];
        if (t->at[SPLIT].region == region && t->view_of == i && t->index == index &&
            (region == REGION_SCALE || dtype_is_fp8(t->dtype)))
            return t;
    }
    return NULL;
}

/* A scale of a whole weight counts its parts on all ranks. Experts are on different ranks, with
 * scales of what is there. */
static int kind_of(const Linker *k, const ProgTensor *codes)
{
    return k->in->part_scales || codes->ndim > 2 ? CELLS_OF_PARTS : CELLS_OF_WHOLES;
}

/* Finds by which tensors the program reads the parameters of a weight, whose rows it adds up. */
static Err find_tensors(const LinkedProgram *lp, int unit, int port, CodedWeight *w,
                        const ProgTensor **codes)
{
    const Program *p = programs_of_unit(&lp->programs, unit);
    const Unit *u = &lp->model->unit[unit];
    for (int i = 0; i < w->span;) {
        const ProgTensor *scale = tensor_of(p, REGION_SCALE, port + i);
        *codes = tensor_of(p, REGION_PARAM, port + i);
        if (!scale || !*codes || scale->span != (*codes)->span || i + scale->span > w->span)
            return err_fail(ERR_CHECK,
                            "unit %s: %s is coded, and its program reads no scales of it", u->name,
                            lp->model->param[u->param[port + i]].name);
        w->rows += (*codes)->dim[(*codes)->ndim - 2].cap;
        w->block = scale->ndim > 1 ? FP8_BLOCK : 0;
        i += scale->span;
    }
    return OK;
}

/* Describes the weight of which the pack's parameter `index` is the first; *kind: of its cells.
 * Programs of other ranks may read as one what is apart here, so the parameters say what shares a
 * scale. */
static Err describe(const Linker *k, int pack, int index, CodedWeight *out, int *kind)
{
    const LinkedProgram *lp = k->lp;
    const Pack *of = &lp->model->pack[pack];
    const Unit *u = &lp->model->unit[of->unit];
    const ProgTensor *codes;
    int port = 0;
    *out = (CodedWeight){.param = index, .span = 1};
    while (u->param[port] != of->param[index]) port++;
    while (index + out->span < of->n_params &&
           lp->model->param[of->param[index + out->span]].info.joined)
        out->span++;
    TRY(find_tensors(lp, of->unit, port, out, &codes));
    out->matrices = codes->ndim > 2 ? codes->dim[0].cap : 1;
    out->columns = codes->dim[codes->ndim - 1].cap;
    *kind = kind_of(k, codes);
    return OK;
}

/* Describes the weights of a pack of this stage. */
static Err describe_pack(Linker *k, int pack)
{
    PackMemory *m = &k->lp->pack[pack];
    const int n = k->lp->model->pack[pack].n_params;
    CodedWeight *w;
    int kind;
    TRY(ARENA_NEW(k->arena, n, &w));
    for (int i = 0; i < n; i += w[m->n_coded++].span)
        TRY(describe(k, pack, i, &w[m->n_coded], &kind));
    m->coded = w;
    return OK;
}

/* Numbers the cells of one kind and view; *axes gets those over which others have parts. */
static Err number_cells(const Linker *k, int view, int kind, int64_t *at, unsigned *axes)
{
    LinkedProgram *lp = k->lp;
    for (int p = 0; p < lp->model->n_packs; p++) {
        PackMemory *m = &lp->pack[p];
        for (int i = 0; i < m->n_coded && lp->model->pack[p].view == view; i++) {
            CodedWeight *w = (CodedWeight *)(uintptr_t)&m->coded[i];
            CodedWeight same;
            int is;
            TRY(describe(k, p, w->param, &same, &is));
            if (is != kind) continue;
            *axes |= m->home.shard | (kind == CELLS_OF_WHOLES ? m->home.model : 0);
            for (int n = 0; n < w->span; n++)
                lp->scale_at[lp->model->pack[p].param[w->param + n]] = *at;
            w->at = *at;
            *at += coded_cells(w);
        }
    }
    return OK;
}

Err place_codes(Linker *k, size_t *at)
{
    LinkedProgram *lp = k->lp;
    int64_t cells = 0;
    TRY(ARENA_NEW(k->arena, lp->model->n_params, &lp->scale_at));
    for (int p = 0; p < lp->model->n_packs; p++)
        if (pack_is_coded(&lp->model->pack[p]) && pack_on_stage(k, p)) TRY(describe_pack(k, p));
    for (int i = 0; i < lp->mesh->n_views * N_CELL_KINDS; i++) {
        ScaleCells *s = &lp->scales[i];
        unsigned axes = 0;
        s->first = cells;
        TRY(number_cells(k, i / N_CELL_KINDS, i % N_CELL_KINDS, &cells, &axes));
        s->n = cells - s->first;
        TRY(mesh_group(lp->mesh, i / N_CELL_KINDS, axes, lp->rank, k->arena, &s->group));
    }
    lp->scale_cells = cells;
    lp->amax_at = link_take(at, (size_t)cells * sizeof(float));
    lp->scales_at = link_take(at, (size_t)cells * sizeof(float));
    bool made = cells == 0;
    for (int i = 0; i < lp->n; i++) made = made || lp->list[i].action.kind == A_QUANTIZE;
    if (made) return OK;
    return err_fail(ERR_CHECK, "stage %d has coded weights, and its list no quantize", lp->stage);
}

int codes_steps(const Linker *k, int at, LinkedStep *out)
{
    const LinkedProgram *lp = k->lp;
    int n = 0;
    for (int i = 0; i < MAX_SCALES; i++) {
        const ScaleCells *s = &lp->scales[i];
        const Ref cells = {lp->rank, ARENA_STEP, lp->amax_at + (size_t)s->first * sizeof(float),
                           s->n, F32};
        if (s->n == 0 || s->group.n == 1) continue;
        out[n] = (LinkedStep){.kind = STEP_TRANSFER, .what = "scales"};
        out[n++].t = (Transfer){.kind = COMM_ALL_REDUCE,
                                .reduce = REDUCE_MAX,
                                .group = s->group,
                                .purpose = PURPOSE_GATHER,
                                .from = cells,
                                .to = cells,
                                .instr = at,
                                .tag = i};
    }
    return n;
}
