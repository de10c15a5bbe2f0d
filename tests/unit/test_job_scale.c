/* test_job_scale.c -- the memory that compiling one rank of a long pipeline takes. A rank makes the
 * list of its own stage; tables over (unit, micro-batch) have rows for its own units. */
#define _DEFAULT_SOURCE
#include "support/expect.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/job.h"

enum { STAGES = 128, LAYERS = 8 * STAGES, MICROS = 512, KIB = 1024 };

/* Compiles the first rank of the pipeline; exit status 0: it has `actions` actions. */
static int compile_rank(int actions)
{
    static Job job;
    Arena a;
    ModelConfig c;
    if (arena_open(&a, "job", ARENA_PLENTY) != OK) return 2;
    if (model_config_load("llama-tiny", NULL, 0, &a, &c) != OK) return 2;
    c.n_layers = LAYERS;
    const JobSettings set = {.kind = JOB_STEP,
                             .config = &c,
                             .dtype = F32,
                             .batch = {1, 64},
                             .micros = MICROS,
                             .schedule = "1f1b",
                             .parallel = {.mesh = {.pp = STAGES}, .rank = 1}};
    if (job_compile(&set, &a, &job) != OK) return 3;
    return job.linked.n == actions ? 0 : 4;
}

/* Stage 1 of 128 has 8 units: F and B of each for 512 micro-batches, a send and a receive in each
 * direction, 8 reductions, the norm and 8 updates. All lists over units would be 1.3 million
 * actions, and a table per stage over all cells, as it once was, more than 1 GiB. */
static void a_rank_compiles_its_own_stage(void **state)
{
    (void)state;
    struct rusage use;
    int status;
    const pid_t child = fork();
    if (child == 0) _exit(compile_rank(MICROS * (2 * 8 + 4) + 8 + 1 + 8));
    assert_true(child > 0);
    assert_int_equal(wait4(child, &status, 0, &use), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    if (use.ru_maxrss > 192 * KIB)
        fail_msg("%ld KiB; a rank of %d stages takes at most %d", use.ru_maxrss, STAGES, 192 * KIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_compiles_its_own_stage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
