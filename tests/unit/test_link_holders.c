/* test_link_holders.c -- tied weights have a gradient sum in each unit that holds them; a list that
 * does not add them is refused. So is a list that leaves gradients partial on ranks that share
 * them, or that reads packs that are not gathered. */
#include "support/expect.h"

#include <string.h>

#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "job/job.h"

/* Links the job's own list without the actions of one kind. */
static Err link_without(Job *job, ActionKind kind, Arena *a)
{
    LinkedProgram lp;
    Schedule s = job->units;
    int n[1] = {0};
    Action *list;
    DO(ARENA_NEW(a, s.n[0], &list));
    for (int i = 0; i < s.n[0]; i++)
        if (s.list[0][i].kind != kind) list[n[0]++] = s.list[0][i];
    s.n = n;
    s.list = &list;
    const LinkInput in = {.model = &job->model,
                          .program = job->program,
                          .n_moments = 2,
                          .mesh = &job->mesh,
                          .switches = job->switches};
    return schedule_link(&s, 0, &in, a, &lp);
}

static void compile_ranks(const char *model, ParallelSettings parallel, Arena *a, ModelConfig *c,
                          Job *job)
{
    DO(model_config_load(model, NULL, 0, a, c));
    const JobSettings set = {.kind = JOB_STEP,
                             .config = c,
                             .dtype = F32,
                             .batch = {1, 8},
                             .micros = 2,
                             .schedule = "1f1b",
                             .parallel = parallel};
    DO(job_compile(&set, a, job));
}

static void ranks_need_transfers(void **state)
{
    (void)state;
    static Job job;
    Arena a;
    ModelConfig c;
    DO(arena_open(&a, "test", ARENA_PLENTY));
    for (int zero = 0; zero < 4; zero++) {
        const ParallelSettings p = {.mesh = {.dp_shard = 2}, .zero = zero};
        compile_ranks("llama-tiny", p, &a, &c, &job);
        DO(link_without(&job, A_BIND, &a));
        expect_error("reduce", link_without(&job, A_REDUCE, &a), ERR_CHECK,
                     "the list has no reduce.");
        if (zero > 0)
            expect_error("gather", link_without(&job, A_GATHER, &a), ERR_CHECK,
                         "the list has no gather.0 before it");
    }
    arena_close(&a);
}

static void compile_job(const char *model, JobKind kind, Arena *a, ModelConfig *c, Job *job)
{
    DO(model_config_load(model, NULL, 0, a, c));
    const JobSettings set = {
        .kind = kind, .config = c, .dtype = F32, .batch = {1, 8}, .micros = 2, .schedule = "gpipe"};
    DO(job_compile(&set, a, job));
}

static void missing_reduce_is_refused(void **state)
{
    (void)state;
    static Job job;
    Arena a;
    ModelConfig c;
    DO(arena_open(&a, "test", ARENA_PLENTY));
    compile_job("gpt2-tiny", JOB_STEP, &a, &c, &job); /* tied */
    DO(link_without(&job, A_BIND, &a));
    assert_int_equal(link_without(&job, A_REDUCE, &a), ERR_CHECK);
    assert_non_null(strstr(
        err_text(), "parameter wte.weight is held by 2 units, and the list has no reduce.0"));
    compile_job("llama-tiny", JOB_STEP, &a, &c, &job); /* not tied */
    DO(link_without(&job, A_REDUCE, &a));
    compile_job("gpt2-tiny", JOB_LOSS, &a, &c, &job); /* writes no sums */
    DO(link_without(&job, A_REDUCE, &a));
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(missing_reduce_is_refused),
                                       cmocka_unit_test(ranks_need_transfers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
