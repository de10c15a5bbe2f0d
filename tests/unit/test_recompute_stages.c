/* test_recompute_stages.c -- recompute rules per pipeline stage: early stages, which hold more
 * micro-batches, recompute more and save memory. No number changes. */
#include "support/expect.h"
#include "support/jobs.h"

#include "verify/trial.h"

enum { STAGES = 3 };

static int count_recomputed(const Job *job)
{
    int n = 0; /* in all RUNs of the rank */
    for (int k = 0; k < job->linked.n; k++) {
        const Program *p = job->linked.list[k].program;
        for (int i = 0; p && i < p->n_instr; i++) n += p->instr[i].recomputed;
    }
    return n;
}

static JobSettings staged(void)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.micros = 4;
    set.schedule = "1f1b";
    set.parallel.mesh.pp = STAGES;
    set.stage[0] = (StageRecompute){RECOMPUTE_FULL, 0, 0};
    set.stage[1] = (StageRecompute){RECOMPUTE_SELECTIVE, 0,
                                    1}; /* of two rules that match a stage, the first applies */
    set.n_stage_rules = 2;
    return set;
}

static void stages_have_their_own_rules(void **state)
{
    int recomputed_in[STAGES];
    size_t work[2];
    (void)state;
    for (int by_stage = 0; by_stage < 2; by_stage++)
        for (int rank = 0; rank < STAGES; rank++) {
            static Job job; /* large */
            Arena arena;
            JobSettings set = staged();
            set.parallel.rank = rank;
            if (!by_stage) set.n_stage_rules = 0;
            DO(arena_open(&arena, "stages", ARENA_PLENTY));
            DO(job_compile(&set, &arena, &job));
            if (rank == 0) work[by_stage] = job.linked.bytes[ARENA_WORK];
            if (by_stage) recomputed_in[rank] = count_recomputed(&job);
            arena_close(&arena);
        }
    assert_true(recomputed_in[0] > recomputed_in[1] && recomputed_in[1] > recomputed_in[2]);
    assert_int_equal(recomputed_in[2], 0);
    assert_true(work[1] < work[0]);
}

static void numbers_are_unchanged(void **state)
{
    TrialSettings t = {.job = staged(),
                       .device = &device_ref,
                       .global = 5,
                       .steps = 3,
                       .lr = 1e-3,
                       .seed = 9,
                       .poison = true};
    Trial by_stage, plain;
    Arena arena;
    (void)state;
    t.job.dtype = F64;
    DO(arena_open(&arena, "stages", ARENA_PLENTY));
    DO(trial_run(&t, &arena, &by_stage));
    t.job.n_stage_rules = 0;
    DO(trial_run(&t, &arena, &plain));
    assert_true(trial_gap(&plain, &by_stage, 3).same);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_have_their_own_rules),
                                       cmocka_unit_test(numbers_are_unchanged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
