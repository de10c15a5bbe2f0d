/* test_simulate_run.c -- recorders of ranks that run a step count the simulated bytes, kind by
 * kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "plan/simulate.h"
#include "support/jobs.h"
#include "world/world.h"

enum { MAX_RANKS = 8 };

typedef struct {
    const JobSettings *set;
    Recorder seen[MAX_RANKS];
    RankCount count[MAX_RANKS];
} Work;

/* One rank: compile, open, one step. Transfers before the step are subtracted. */
static Err run_rank(WorldRank *r, void *work)
{
    Work *w = work;
    JobSettings set = *w->set;
    const StepSettings step = {.step = 1, .lr = 1e-3};
    StepResult result;
    Job *job;
    Rank rank;
    set.parallel.rank = r->rank;
    TRY(ARENA_NEW(r->arena, 1, &job));
    TRY(job_compile(&set, r->arena, job));
    const Mesh *mesh = &job->mesh;
    const unsigned dp = mesh_axes(mesh, VIEW_DENSE, "dp");
    TRY(job_open_rank(job, r->comm, NULL, &rank));
    TRY(rank_init_weights(&rank, 5));
    for (int m = 0; m < set.micros; m++) {
        const TestBatch b = test_job_batch(&set, m * mesh_parts(mesh, VIEW_DENSE, dp) +
                                                     mesh_part(mesh, VIEW_DENSE, dp, r->rank));
        rank_fill_batch(&rank, m, &b);
    }
    TRY(world_agree(r, OK));
    const Recorder before = *comm_recorder(r->comm);
    const Err err = rank_step(&rank, &step, &result);
    Recorder after = *comm_recorder(r->comm);
    for (int k = 0; k < N_COMM_KINDS; k++) {
        after.of_kind[k].transfers -= before.of_kind[k].transfers;
        after.of_kind[k].sent_bytes -= before.of_kind[k].sent_bytes;
    }
    after.scalars.transfers -= before.scalars.transfers;
    after.scalars.sent_bytes -= before.scalars.sent_bytes;
    w->seen[r->rank] = after;
    if (err == OK) TRY(count_rank(&job->linked, &w->count[r->rank]));
    world_leave(r, err);
    rank_close(&rank);
    return err;
}

static void check_rank(const Recorder *seen, const Traffic *sent, const char *name, int rank)
{
    CommCount of_kind[N_COMM_KINDS] = {{0}}, scalars = {0};
    for (int i = 0; i < sent->n; i++) {
        CommCount *to = sent->row[i].scalar ? &scalars : &of_kind[sent->row[i].kind];
        to->transfers += sent->row[i].transfers;
        to->sent_bytes += sent->row[i].sent_bytes;
    }
    for (int k = 0; k < N_COMM_KINDS; k++)
        if (of_kind[k].sent_bytes != seen->of_kind[k].sent_bytes ||
            of_kind[k].transfers != seen->of_kind[k].transfers)
            fail_msg("%s, rank %d, %s: simulated %zu bytes in %lld transfers, recorded %zu in %lld",
                     name, rank, comm_kind_name((CommKind)k), of_kind[k].sent_bytes,
                     (long long)of_kind[k].transfers, seen->of_kind[k].sent_bytes,
                     (long long)seen->of_kind[k].transfers);
    assert_int_equal(scalars.transfers, seen->scalars.transfers);
    assert_int_equal(scalars.sent_bytes, seen->scalars.sent_bytes);
}

static void run_and_check(const char *model, const ParallelSettings *p, int micros)
{
    char name[128];
    Work w = {0};
    Mesh mesh;
    JobSettings set = test_job_settings(model, JOB_STEP);
    set.micros = micros;
    set.parallel = *p;
    w.set = &set;
    assert_int_equal(mesh_sized(&p->mesh, &mesh), OK);
    snprintf(name, sizeof name, "%s dp_replicate=%d dp_shard=%d tp=%d zero=%d", model,
             p->mesh.dp_replicate, p->mesh.dp_shard, p->mesh.tp, p->zero);
    const WorldSettings world = {.ranks = mesh.world,
                                 .in_flight = 64,
                                 .records = 16,
                                 .timeout_s = 20,
                                 .body = run_rank,
                                 .work = &w};
    if (world_run(&world) != OK) fail_msg("%s: %s", name, err_text());
    for (int r = 0; r < mesh.world; r++) check_rank(&w.seen[r], &w.count[r].traffic, name, r);
}

static void recorders_count_the_simulated_bytes(void **state)
{
    (void)state;
    static const ParallelSettings plan[] = {
        {.mesh = {.dp_shard = 1}},
        {.mesh = {.dp_shard = 3}},
        {.mesh = {.dp_shard = 3}, .zero = 1},
        {.mesh = {.dp_shard = 3}, .zero = 2},
        {.mesh = {.dp_shard = 3}, .zero = 3, .live = 2},
        {.mesh = {.dp_replicate = 2, .dp_shard = 2}, .zero = 0, .reduce_each = true},
        {.mesh = {.dp_replicate = 2, .dp_shard = 2}, .zero = 3, .live = 3},
        {.mesh = {.dp_shard = 1, .tp = 2}},
        {.mesh = {.dp_shard = 1, .tp = 3}},
        {.mesh = {.dp_shard = 2, .tp = 2}, .zero = 1},
        {.mesh = {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, .zero = 2},
        {.mesh = {.dp_shard = 2, .tp = 2}, .zero = 3, .live = 2, .sequence = true},
        {.mesh = {.dp_shard = 1, .tp = 3}, .sequence = true, .keep_gathered = true},
        {.mesh = {.dp_shard = 2, .tp = 4}, .zero = 1, .sequence = true},
    };
    for (size_t i = 0; i < sizeof plan / sizeof *plan; i++) {
        run_and_check("llama", &plan[i], 2);
        run_and_check("gpt2", &plan[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorders_count_the_simulated_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
