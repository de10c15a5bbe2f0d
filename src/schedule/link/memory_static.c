/* memory_static.c -- arenas without lifetimes: state, step and session, back to back.
 *
 *     state    for each pack    pack | master | moment 1 | moment 2     the pack stays gathered,
 *                                ^^^^ the home                          with its home inside
 *              or               home | master | moment 1 | moment 2     it is gathered per use
 *              Inference has weights only: no master weights, no moments.
 *     step     for each unit    gradient sums of its packs, or homes; prepacked weights
 *              scales of coded weights, lists of a device
 *              inputs of all micro-batches, losses, scalars that ranks exchange
 *     session  for each unit    keys and values of all sequences */
#include "schedule/link/link_parts.h"

static void place_state(const Linker *k, int pack, size_t *at)
{
    const LinkedProgram *lp = k->lp;
    PackMemory *p = &lp->pack[pack];
    const PackTypes type = lp->model->pack[pack].type;
    const size_t narrow = dtype_bytes(type.use), wide = dtype_bytes(type.wide);
    const size_t home = (size_t)home_count(p);
    p->whole = NO_BASE;
    if (gathered_per_use(k, pack)) {
        p->weights = link_take(at, home * narrow);
    } else {
        p->whole = link_take(at, (size_t)p->mine.pack_count * narrow);
        p->weights = p->whole + (size_t)p->mine.shard.lo * narrow;
    }
    p->master = wide == narrow || lp->no_master ? p->weights : link_take(at, home * wide);
    for (int m = 0; m < lp->n_moments; m++) p->moments[m] = link_take(at, home * wide);
}

static void place_sums(const Linker *k, int pack, size_t *at)
{
    PackMemory *p = &k->lp->pack[pack];
    const size_t wide = dtype_bytes(k->lp->model->pack[pack].type.wide);
    p->grad_sums = p->reduced_grads = NO_BASE;
    if (!k->writes) return; /* a list that computes only the loss has no gradients */
    if (k->grouped[pack]) {
        p->reduced_grads = link_take(at, (size_t)home_count(p) * wide);
    } else {
        p->grad_sums = link_take(at, (size_t)p->mine.pack_count * wide);
        p->reduced_grads = p->grad_sums + (size_t)p->mine.shard.lo * wide;
    }
}

static void place_tied(const Linker *k, int unit, size_t *at)
{
    UnitMemory *u = &k->lp->unit[unit];
    const int pack = tied_pack(k->lp, unit);
    u->tied_grads = NO_BASE;
    if (!k->writes || pack < 0 || k->grouped[pack]) return;
    u->tied_grads =
        link_take(at, (size_t)u->tied_count * dtype_bytes(k->lp->model->pack[pack].type.wide));
}

/* Places the keys and values of the units of this stage. */
static size_t place_session(const Linker *k)
{
    LinkedProgram *lp = k->lp;
    size_t at = 0;
    for (int u = 0; u < lp->model->n_units; u++)
        if (on_stage(k, u))
            lp->unit[u].session = link_take(&at, programs_of_unit(&lp->programs, u)->session_bytes);
    return at;
}

static int64_t blocks_of(const LinkedProgram *lp, int64_t count)
{
    return (count + lp->block - 1) / lp->block;
}

/* The axes over which the packs of a view are sharded; *any: there are such packs. */
static unsigned view_shard(const LinkedProgram *lp, int view, bool *any)
{
    unsigned shard = 0;
    *any = false;
    for (int p = 0; p < lp->model->n_packs; p++) {
        if (lp->pack[p].home.view != view) continue;
        shard |= lp->pack[p].home.shard;
        *any = true;
    }
    return shard;
}

/* Places the cells of each member's blocks of each pack of a view: by stage and member, then by
 * pack, so that one all-gather exchanges them. Blocks that every member of a stage has are sent by
 * the first. */
static Err place_blocks(Linker *k, int view, const int64_t **counts)
{
    LinkedProgram *lp = k->lp;
    ScalarCells *b = &lp->scalar[BLOCKS + view];
    const unsigned pp = mesh_axes(lp->mesh, view, "pp");
    bool any;
    const unsigned shard = view_shard(lp, view, &any);
    int64_t *count, at = 0;
    TRY(ARENA_NEW(k->arena, b->group.n, &count));
    for (int i = 0; any && i < b->group.n; i++) {
        const int stage = mesh_part(lp->mesh, view, pp, b->group.rank[i]);
        const int member = mesh_part(lp->mesh, view, shard, b->group.rank[i]);
        const int64_t first = at;
        for (int p = 0; p < lp->model->n_packs; p++) {
            const PackMemory *of = &lp->pack[p];
            if (of->home.view != view || of->stage != stage || member >= of->group.n) continue;
            k->cell[p][member] = at;
            at += blocks_of(lp, of->counts[member]);
        }
        if (b->group.rank[i] == lp->rank) b->mine = first;
        count[i] = at - first;
    }
    b->cells = at;
    *counts = count;
    return OK;
}

/* Finds the groups that exchange scalars: dp, stages and the axes over which the loss is partial;
 * for each view the shard axes and stages, and the model axes. */
static Err scalar_groups(Linker *k, unsigned *loss)
{
    LinkedProgram *lp = k->lp;
    const Mesh *m = lp->mesh;
    *loss = mesh_axes(m, VIEW_DENSE, "pp"); /* the last stage has the loss */
    for (int i = 0; i < lp->programs.n_classes; i++) *loss |= lp->programs.program[i].loss_partial;
    TRY(mesh_group(m, VIEW_DENSE, mesh_axes(m, VIEW_DENSE, "dp") | *loss, lp->rank, k->arena,
                   &lp->scalar[TOTALS].group));
    for (int view = 0; view < MAX_VIEWS; view++) {
        const int of = view < m->n_views ? view : VIEW_DENSE;
        const unsigned pp = mesh_axes(m, of, "pp");
        bool any;
        const unsigned shard = view_shard(lp, view, &any);
        const unsigned model = mesh_all_axes(m, of) & ~(mesh_data_axes(m, of) | pp);
        TRY(mesh_group(m, of, any ? shard | pp : 0, lp->rank, k->arena,
                       &lp->scalar[BLOCKS + view].group));
        TRY(mesh_group(m, of, any ? model : 0, lp->rank, k->arena,
                       &lp->scalar[SQUARES + view].group));
        lp->scalar[SQUARES + view].cells = any ? lp->scalar[SQUARES + view].group.n : 0;
    }
    return OK;
}

/* Places the statistics of the units of this stage, and the rows of their sums. */
static void place_stats(Linker *k, size_t *at)
{
    LinkedProgram *lp = k->lp;
    int rows = 0;
    for (int u = 0; u < lp->model->n_units; u++) {
        const int64_t n = programs_of_unit(&lp->programs, u)->stats;
        if (n > lp->stats) lp->stats = n;
    }
    for (int u = 0; u < lp->model->n_units; u++) {
        const bool has = programs_of_unit(&lp->programs, u)->stats > 0;
        lp->unit[u].stat_row = has ? rows++ : -1;
        lp->unit[u].stats = has && on_stage(k, u)
                                ? link_take(at, (size_t)lp->micros * linked_stat_bytes(lp))
                                : NO_BASE;
    }
    lp->scalar[STATS].cells = rows * lp->stats;
}

/* Finds the ranks that sum statistics: those with other tokens or other units. */
static Err stat_group(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const Mesh *m = lp->mesh;
    unsigned partial = 0;
    for (int i = 0; i < lp->programs.n_classes; i++)
        partial |= lp->programs.program[i].stat_partial;
    const unsigned axes =
        lp->stats ? mesh_axes(m, VIEW_DENSE, "dp") | mesh_axes(m, VIEW_DENSE, "pp") | partial : 0;
    return mesh_group(m, VIEW_DENSE, axes, lp->rank, k->arena, &lp->scalar[STATS].group);
}

/* Builds the transfer of a scalar: an all-gather in place. */
static void scalar_transfer(const LinkedProgram *lp, ScalarCells *s, int which, int64_t gathered,
                            const int64_t *counts)
{
    int me = 0;
    while (s->group.rank[me] != lp->rank) me++;
    const int64_t each = counts ? counts[me] : gathered / s->group.n;
    if (!counts) s->mine = me * each;
    const size_t cell = sizeof(double);
    s->t = (Transfer){.kind = COMM_ALL_GATHER,
                      .group = s->group,
                      .purpose = PURPOSE_SCALAR,
                      .from = {lp->rank, ARENA_STEP, s->at + (size_t)s->mine * cell, each, F64},
                      .to = {lp->rank, ARENA_STEP, s->at, gathered, F64},
                      .to_counts = counts,
                      .instr = lp->n,
                      .tag = -1 - which,
                      .scalar = true};
}

/* Finds the members of TOTALS whose live tokens are summed. */
static Err find_token_owners(Linker *k, unsigned loss)
{
    LinkedProgram *lp = k->lp;
    const RankList group = lp->scalar[TOTALS].group;
    const unsigned own = mesh_axes(lp->mesh, VIEW_DENSE, "dp") | input_axes(lp, INPUT_WEIGHTS);
    TRY(ARENA_NEW(k->arena, group.n, &lp->tokens_are_own));
    for (int i = 0; i < group.n; i++)
        lp->tokens_are_own[i] = mesh_part(lp->mesh, VIEW_DENSE, loss & ~own, group.rank[i]) == 0;
    return OK;
}

/* Counts the cells of packs from the first cell of BLOCKS on, whatever their view. */
static void shift_cells(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    for (int p = 0; p < lp->model->n_packs; p++) {
        const size_t at = lp->scalar[BLOCKS + lp->pack[p].home.view].at - lp->scalar[BLOCKS].at;
        for (int i = 0; i < lp->pack[p].group.n; i++)
            k->cell[p][i] += (int64_t)(at / sizeof(double));
        lp->pack[p].cell = k->cell[p];
    }
}

static void stat_transfer(const LinkedProgram *lp, ScalarCells *s)
{
    scalar_transfer(lp, s, STATS, s->cells * s->group.n, NULL);
    s->mine = 0;
    s->t.kind = COMM_ALL_REDUCE;
    s->t.reduce = REDUCE_SUM;
    s->t.from.offset = s->t.to.offset = s->at;
    s->t.from.count = s->t.to.count = s->cells;
}

static Err place_scalars(Linker *k, size_t *at)
{
    LinkedProgram *lp = k->lp;
    ScalarCells *s = lp->scalar;
    const int64_t *counts[MAX_VIEWS];
    unsigned loss;
    TRY(scalar_groups(k, &loss));
    TRY(ARENA_NEW(k->arena, lp->model->n_packs, &k->cell));
    for (int p = 0; p < lp->model->n_packs; p++)
        TRY(ARENA_NEW(k->arena, lp->pack[p].group.n, &k->cell[p]));
    for (int view = 0; view < MAX_VIEWS; view++) TRY(place_blocks(k, view, &counts[view]));
    TRY(stat_group(k));
    s[TOTALS].cells = 2 * s[TOTALS].group.n;
    for (int i = 0; i < N_SCALARS; i++)
        s[i].at = link_take(at, (size_t)s[i].cells * sizeof(double));
    shift_cells(k);
    scalar_transfer(lp, &s[TOTALS], TOTALS, s[TOTALS].cells, NULL);
    stat_transfer(lp, &s[STATS]);
    for (int view = 0; view < MAX_VIEWS; view++) {
        ScalarCells *blocks = &s[BLOCKS + view], *squares = &s[SQUARES + view];
        scalar_transfer(lp, blocks, BLOCKS + view, blocks->cells, counts[view]);
        scalar_transfer(lp, squares, SQUARES + view, squares->cells, NULL);
    }
    return find_token_owners(k, loss);
}

Err link_static(Linker *k)
{
    LinkedProgram *lp = k->lp;
    size_t state = 0, step = 0;
    for (int u = 0; u < lp->model->n_units; u++) {
        const Unit *of = &lp->model->unit[u];
        for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++) {
            place_state(k, p, &state);
            place_sums(k, p, &step);
        }
        place_tied(k, u, &step);
        TRY(place_prepacked(k, u, &step));
    }
    TRY(place_codes(k, &step));
    place_lists(k, &step);
    TRY(place_inputs(lp, k->arena, &step));
    place_stats(k, &step);
    TRY(place_scalars(k, &step));
    lp->device_scalars = k->in->workspace ? link_take(&step, ARENA_ALIGN) : NO_BASE;
    lp->bytes[ARENA_SESSION] = lp->live[ARENA_SESSION] = place_session(k);
    lp->bytes[ARENA_STATE] = lp->live[ARENA_STATE] = state;
    lp->bytes[ARENA_STEP] = lp->live[ARENA_STEP] = step;
    return OK;
}
