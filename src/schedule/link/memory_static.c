/* memory_static.c -- arenas without lifetimes: state, step and session, back to back.
 *
 *     state    for each unit    pack | master | moment 1 | moment 2     the pack stays gathered,
 *                                ^^^^ the home                          with its home inside
 *              or               home | master | moment 1 | moment 2     it is gathered per use
 *              Inference has weights only: no master weights, no moments.
 *     step     for each unit    gradient sums of the pack, or of the home; prepacked weights
 *              inputs of all micro-batches, losses, scalars that ranks exchange
 *     session  for each unit    keys and values of all sequences */
#include "schedule/link/link_parts.h"

static size_t take(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = align_up(start + bytes);
    return start;
}

static void place_state(const Linker *k, int unit, size_t *at)
{
    const LinkedProgram *lp = k->lp;
    UnitMemory *p = &lp->unit[unit];
    const size_t narrow = dtype_bytes(lp->model->dtype),
                 wide = dtype_bytes(dtype_wide(lp->model->dtype));
    const size_t home = (size_t)home_count(p);
    p->pack = NO_BASE;
    if (gathered_per_use(k, unit)) {
        p->weights = take(at, home * narrow);
    } else {
        p->pack = take(at, (size_t)p->mine.pack_count * narrow);
        p->weights = p->pack + (size_t)p->mine.shard.lo * narrow;
    }
    p->master = wide == narrow || lp->no_master ? p->weights : take(at, home * wide);
    for (int m = 0; m < lp->n_moments; m++) p->moments[m] = take(at, home * wide);
}

static void place_sums(const Linker *k, int unit, size_t *at)
{
    const LinkedProgram *lp = k->lp;
    UnitMemory *p = &lp->unit[unit];
    const size_t wide = dtype_bytes(dtype_wide(lp->model->dtype));
    const int owner = tied_owner(lp, unit);
    p->grad_sums = p->tied_grads = p->reduced_grads = NO_BASE;
    if (!k->writes) return; /* a list that computes only the loss has no gradients */
    if (k->grouped[unit]) {
        p->reduced_grads = take(at, (size_t)home_count(p) * wide);
    } else {
        p->grad_sums = take(at, (size_t)p->mine.pack_count * wide);
        p->reduced_grads = p->grad_sums + (size_t)p->mine.shard.lo * wide;
    }
    if (owner >= 0 && !k->grouped[owner]) p->tied_grads = take(at, (size_t)p->tied_count * wide);
}

static void place_inputs(LinkedProgram *lp, size_t *at)
{
    const size_t first = *at;
    for (int i = 0; i < N_INPUTS; i++) {
        const size_t each = i == INPUT_WEIGHTS  ? dtype_bytes(dtype_wide(lp->model->dtype))
                            : i == INPUT_RANGES ? 16
                                                : 4;
        const bool session =
            i == INPUT_PLACES || i == INPUT_LOGIT_ROWS; /* a training step reads neither */
        const bool there = !session || lp->model->logit_rows > 0;
        lp->input[i] = take(at, there ? (size_t)lp->model->rows * each : 0);
    }
    lp->input_stride = *at - first;
    *at = first + lp->input_stride * (size_t)lp->micros;
    lp->loss = take(at, (size_t)lp->micros * ARENA_ALIGN);
}

/* Places the keys and values of the units of this stage. */
static size_t place_session(const Linker *k)
{
    LinkedProgram *lp = k->lp;
    size_t at = 0;
    for (int u = 0; u < lp->model->n_units; u++)
        if (on_stage(k, u))
            lp->unit[u].session = take(&at, lp->program[lp->model->unit[u].kind].session_bytes);
    return at;
}

static int64_t blocks_of(const LinkedProgram *lp, int64_t count)
{
    return (count + lp->block - 1) / lp->block;
}

/* Places the cells of each member's blocks of each unit: by stage and member, then by unit, so that
 * one all-gather exchanges them. Blocks that every member of a stage has are sent by the first. */
static Err place_blocks(Linker *k, unsigned shard, const int64_t **counts)
{
    LinkedProgram *lp = k->lp;
    ScalarCells *b = &lp->scalar[BLOCKS];
    const unsigned pp = mesh_axes(lp->mesh, VIEW_DENSE, "pp");
    int64_t *count, *cell, at = 0;
    TRY(ARENA_NEW(k->arena, b->group.n, &count));
    for (int u = 0; u < lp->model->n_units; u++) {
        TRY(ARENA_NEW(k->arena, lp->unit[u].group.n, &cell));
        lp->unit[u].cell = cell;
    }
    for (int i = 0; i < b->group.n; i++) {
        const int stage = mesh_part(lp->mesh, VIEW_DENSE, pp, b->group.rank[i]);
        const int member = mesh_part(lp->mesh, VIEW_DENSE, shard, b->group.rank[i]);
        const int64_t first = at;
        for (int u = 0; u < lp->model->n_units; u++) {
            UnitMemory *p = &lp->unit[u];
            if (schedule_stage_of(k->s, u) != stage || member >= p->group.n) continue;
            ((int64_t *)p->cell)[member] = at;
            at += blocks_of(lp, p->counts[member]);
        }
        if (b->group.rank[i] == lp->rank) b->mine = first;
        count[i] = at - first;
    }
    b->cells = at;
    *counts = count;
    return OK;
}

/* Finds the groups that exchange scalars: dp, stages and the axes over which the loss is partial;
 * the shard axes and stages; the remaining axes. */
static Err scalar_groups(Linker *k, unsigned *loss, unsigned *shard)
{
    LinkedProgram *lp = k->lp;
    const Mesh *m = lp->mesh;
    const unsigned dp = mesh_axes(m, VIEW_DENSE, "dp"), pp = mesh_axes(m, VIEW_DENSE, "pp");
    *shard = 0;
    *loss = pp; /* the last stage has the loss */
    for (int i = 0; i < lp->model->n_kinds; i++) *loss |= lp->program[i].loss_partial;
    for (int u = 0; u < lp->model->n_units; u++) *shard |= lp->unit[u].home.shard;
    const unsigned axes[N_SCALARS] = {dp | *loss, *shard | pp,
                                      mesh_all_axes(m, VIEW_DENSE) & ~(dp | pp)};
    for (int i = 0; i < N_SCALARS; i++)
        TRY(mesh_group(m, VIEW_DENSE, axes[i], lp->rank, k->arena, &lp->scalar[i].group));
    return OK;
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

static Err place_scalars(Linker *k, size_t *at)
{
    LinkedProgram *lp = k->lp;
    ScalarCells *s = lp->scalar;
    const int64_t *counts;
    unsigned loss, shard;
    TRY(scalar_groups(k, &loss, &shard));
    TRY(place_blocks(k, shard, &counts));
    s[TOTALS].cells = 2 * s[TOTALS].group.n;
    s[SQUARES].cells = s[SQUARES].group.n;
    for (int i = 0; i < N_SCALARS; i++) s[i].at = take(at, (size_t)s[i].cells * sizeof(double));
    scalar_transfer(lp, &s[TOTALS], TOTALS, s[TOTALS].cells, NULL);
    scalar_transfer(lp, &s[BLOCKS], BLOCKS, s[BLOCKS].cells, counts);
    scalar_transfer(lp, &s[SQUARES], SQUARES, s[SQUARES].cells, NULL);
    TRY(ARENA_NEW(k->arena, s[TOTALS].group.n, &lp->tokens_are_own));
    const unsigned shared = loss & ~mesh_axes(lp->mesh, VIEW_DENSE, "dp");
    for (int i = 0; i < s[TOTALS].group.n; i++)
        lp->tokens_are_own[i] =
            mesh_part(lp->mesh, VIEW_DENSE, shared, s[TOTALS].group.rank[i]) == 0;
    return OK;
}

Err link_static(Linker *k)
{
    LinkedProgram *lp = k->lp;
    size_t state = 0, step = 0;
    for (int u = 0; u < lp->model->n_units; u++) {
        place_state(k, u, &state);
        place_sums(k, u, &step);
        TRY(place_prepacked(k, u, &step));
    }
    place_inputs(lp, &step);
    TRY(place_scalars(k, &step));
    lp->bytes[ARENA_SESSION] = lp->live[ARENA_SESSION] = place_session(k);
    lp->bytes[ARENA_STATE] = lp->live[ARENA_STATE] = state;
    lp->bytes[ARENA_STEP] = lp->live[ARENA_STEP] = step;
    return OK;
}
