/* clock.c -- makes a tape for each rank that is played. */
#include "plan/clock/parts.h"

#include <string.h>

/* True if the nodes differ in nothing but the devices of this one order. */
static bool has_one_order(const ClockInput *in)
{
    const CostRates *r = &in->cluster->rates;
    return in->keeps_order && r->nodes->n_links == 0 && (r->n_levels == 2 || !r->nodes->at) &&
           mesh_parts(in->mesh, VIEW_EXPERT, mesh_axes(in->mesh, VIEW_EXPERT, "ep")) == 1;
}

/* True if ranks that differ only along dp have equal positions on the machine: links between nodes
 * are alike, and every axis either divides the blocks of the levels or is made of whole ones. */
static bool is_aligned(const ClockInput *in)
{
    const View *v = &in->mesh->view[VIEW_DENSE];
    const CostRates *r = &in->cluster->rates;
    int64_t stride = 1;
    if ((r->nodes && !has_one_order(in)) || r->pairs) return false;
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
    return in->every_rank || !is_aligned(in) ? 0 : clock_equal_axes(in);
}

/* A hash of the speeds of all ranks at each coordinate of an axis, by their other coordinates. */
static void hash_speeds(const ClockInput *in, unsigned axis, uint64_t *hash)
{
    for (int rank = 0; rank < in->mesh->world; rank++) {
        const double speed = cost_device(&in->cluster->rates, rank).speed;
        uint64_t h;
        memcpy(&h, &speed, sizeof h);
        h ^= 0x9E3779B97F4A7C15u * (uint64_t)(mesh_move(in->mesh, VIEW_DENSE, axis, 0, rank) + 1);
        h = (h ^ h >> 31) * 0xFF51AFD7ED558CCDu;
        hash[mesh_part(in->mesh, VIEW_DENSE, axis, rank)] += h ^ h >> 33;
    }
}

/* Moves each rank of first[] along the axis to the first coordinate whose devices are as fast. */
static Err merge_axis(const ClockInput *in, unsigned axis, Arena *arena, int *first)
{
    const int size = mesh_parts(in->mesh, VIEW_DENSE, axis);
    uint64_t *hash;
    int *to;
    TRY(ARENA_NEW(arena, size, &to));
    TRY(ARENA_NEW(arena, size, &hash));
    if (cluster_has_devices(in->cluster)) hash_speeds(in, axis, hash);
    for (int i = 0; i < size; i++)
        while (hash[to[i]] != hash[i]) to[i]++;
    for (int rank = 0; rank < in->mesh->world; rank++)
        first[rank] = mesh_move(in->mesh, VIEW_DENSE, axis,
                                to[mesh_part(in->mesh, VIEW_DENSE, axis, rank)], first[rank]);
    return OK;
}

Err clock_assign(StepClock *c, unsigned shared)
{
    const Mesh *mesh = c->in->mesh;
    int *firsts;
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape_of));
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape));
    TRY(ARENA_NEW(c->arena, mesh->world, &firsts));
    for (int rank = 0; rank < mesh->world; rank++) firsts[rank] = rank;
    for (int axis = 0; axis < mesh->view[VIEW_DENSE].n_axes; axis++)
        if (shared >> axis & 1) TRY(merge_axis(c->in, 1u << axis, c->arena, firsts));
    for (int rank = 0; rank < mesh->world; rank++) {
        const int first = firsts[rank];
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
    int *ranks;
    TRY(ARENA_NEW(c->arena, c->n_tapes, &c->parts));
    TRY(ARENA_NEW(c->arena, c->n_tapes, &ranks));
    for (int rank = 0; rank < c->in->mesh->world; rank++) ranks[c->tape_of[rank]]++;
    for (int i = 0; i < c->n_tapes; i++) c->parts[i] = (double)c->in->mesh->world / ranks[i];
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
