/* clock.c -- makes a tape for each rank that is played. */
#include "plan/clock/parts.h"

/* True if ranks that differ only along dp have equal positions on the machine: all nodes are alike,
 * and every axis either divides the blocks of the levels or is made of whole ones. */
static bool is_aligned(const Mesh *mesh, const CostRates *r)
{
    const View *v = &mesh->view[VIEW_DENSE];
    int64_t stride = 1;
    if (r->nodes || r->pairs) return false;
    for (int axis = v->n_axes - 1; axis > 0; axis--) {
        stride *= v->size[axis];
        for (int l = 0; l < r->n_levels - 1; l++)
            if (stride % r->level[l].ranks != 0 && r->level[l].ranks % stride != 0) return false;
    }
    return true;
}

/* True if tp divides everything that it shards: then all ranks along it have equal shapes. */
static bool is_even(const JobSettings *job, int tp)
{
    const ModelConfig *c = job->config;
    const int64_t rows = job->batch.sequences * job->batch.seq_len;
    bool sequence = false;
    for (int u = 0; u < (int)c->n_layers + 2; u++)
        sequence = sequence || job_unit_options(job, u).sequence;
    return c->n_heads % tp == 0 && c->n_kv_heads % tp == 0 && c->ff_width % tp == 0 &&
           c->vocab % tp == 0 && (!sequence || rows % tp == 0) &&
           (!job->parallel.tp_weights ||
            (rows % tp == 0 && c->width % tp == 0 && c->max_positions % tp == 0));
}

unsigned clock_equal_axes(const ClockInput *in)
{
    const unsigned dp = mesh_axes(in->mesh, VIEW_DENSE, "dp");
    const unsigned tp = mesh_axes(in->mesh, VIEW_DENSE, "tp");
    return is_even(in->job, mesh_parts(in->mesh, VIEW_DENSE, tp)) ? dp | tp : dp;
}

/* The axes along which one rank, with coordinate 0, is played for all. */
static unsigned shared_axes(const ClockInput *in)
{
    const bool aligned = is_aligned(in->mesh, &in->cluster->rates);
    return in->every_rank || !aligned ? 0 : clock_equal_axes(in);
}

Err clock_assign(StepClock *c, unsigned shared)
{
    const Mesh *mesh = c->in->mesh;
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape_of));
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape));
    for (int rank = 0; rank < mesh->world; rank++) {
        const int first = shared ? mesh_move(mesh, VIEW_DENSE, shared, 0, rank) : rank;
        if (first == rank) c->tape[c->n_tapes++].rank = rank;
        c->tape_of[rank] = first == rank ? c->n_tapes - 1 : c->tape_of[first];
    }
    return OK;
}

static Err record_tapes(StepClock *c, Arena *temp)
{
    JobSettings settings = *c->in->job;
    Job *shared;
    if (!settings.compile.places)
        TRY(place_memo_open(temp, PLACE_MEMO_OF_JOB, &settings.compile.places));
    TRY(ARENA_NEW(temp, 1, &shared));
    TRY(job_share(&settings, temp, shared));
    const size_t mark = arena_mark(temp);
    for (int i = 0; i < c->n_tapes; i++) {
        Job *job;
        TRY(ARENA_NEW(temp, 1, &job));
        TRY(job_compile_rank(shared, c->tape[i].rank, temp, job));
        TRY(clock_record(c, &job->linked, temp, &c->tape[i]));
        arena_rewind(temp, mark);
    }
    return OK;
}

Err clock_recorded(StepClock *c)
{
    TRY(ARENA_NEW(c->arena, c->n_prices, &c->seconds));
    return ARENA_NEW(c->arena, c->n_tapes, &c->player);
}

Err clock_open(const ClockInput *in, Arena *arena, Arena *temp, StepClock **out)
{
    const size_t temp_mark = arena_mark(temp);
    StepClock *c;
    TRY(ARENA_NEW(arena, 1, &c));
    *c = (StepClock){.in = in, .arena = arena};
    TRY(clock_assign(c, shared_axes(in)));
    TRY(record_tapes(c, temp));
    TRY(clock_recorded(c));
    arena_rewind(temp, temp_mark);
    *out = c;
    return OK;
}

Err clock_step(const ClockInput *in, Arena *arena, Arena *temp, StepTime *out)
{
    const size_t mark = arena_mark(arena);
    StepClock *c;
    TRY(clock_open(in, arena, temp, &c));
    TRY(clock_play(c, in->cluster, out));
    arena_rewind(arena, mark);
    return OK;
}
