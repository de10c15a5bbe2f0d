/* test_program_set.c -- several linked programs over one state: steps that are linked in other ways
 * take turns, with validation between them, and give the bits of one program. Memory is that of the
 * set: the largest work arena, once. */
#include "support/expect.h"

#include "support/jobs.h"

enum { N = 3, STEPS = 4 };

static void compile(Arena *a, Job *job)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.micros = 3;
    set.compile.recompute = RECOMPUTE_FULL;
    DO(job_compile(&set, a, &job[0]));
    set.compile.recompute = RECOMPUTE_NONE;
    set.schedule = "gpipe"; /* more work memory than the owner's own program */
    DO(job_compile(&set, a, &job[1]));
    set.kind = JOB_LOSS;
    DO(job_compile(&set, a, &job[2]));
}

static void fill(const Job *job, Rank *r, int step)
{
    for (int m = 0; m < job->settings.micros; m++) {
        const TestBatch b = test_job_batch(&job->settings, 3 * step + m);
        rank_fill_batch(r, m, &b);
    }
}

static double step_on(const Job *job, Rank *r, int step)
{
    StepResult result;
    fill(job, r, step);
    DO(rank_step(r, &(StepSettings){.step = step + 1, .lr = 1e-2}, &result));
    return result.loss;
}

static void open_all(const Job *job, const ProgramSet *set, Rank *rank)
{
    for (int i = 0; i < set->n; i++) {
        const RankSettings s = {.program = &job[i].linked,
                                .device = &device_ref,
                                .optim = job[i].settings.optim,
                                .poison = true,
                                .set = set,
                                .number = i,
                                .state_of = i ? &rank[0] : NULL};
        DO(rank_open(&rank[i], &s));
    }
    for (int a = 0; a < N_ARENAS; a++) rank_poison(&rank[0], (ArenaId)a);
    for (int i = 1; i < set->n; i++) rank_poison(&rank[i], ARENA_STEP);
    rank_fill_weights(&rank[0], 5);
}

static void programs_take_turns(void **state)
{
    static Job job[N];
    static Rank rank[N], alone;
    Arena a;
    int param;
    (void)state;
    DO(arena_open(&a, "set", ARENA_PLENTY));
    compile(&a, job);
    const ProgramSet set = {N, {&job[0].linked, &job[1].linked, &job[2].linked}};
    const ProgramSet one = {1, {&job[0].linked}};
    DO(program_set_check(&set));
    open_all(job, &set, rank);
    open_all(job, &one, &alone);
    assert_true(job[1].linked.bytes[ARENA_WORK] > job[0].linked.bytes[ARENA_WORK]);
    for (int i = 1; i < N; i++)
        for (int k = 0; k < N_ARENAS; k++)
            assert_int_equal(rank[i].base[k] == rank[0].base[k], k != ARENA_STEP);
    for (int s = 0; s < STEPS; s++) {
        const double loss = step_on(&job[s % 2], &rank[s % 2], s);
        assert_true(loss == step_on(&job[0], &alone, s));
        assert_true(step_on(&job[2], &rank[2], STEPS + s) > 0);
    }
    for (int part = PART_MASTER; part <= PART_MOMENT2; part++)
        if (part != PART_GRAD && !ranks_equal(&rank[0], &alone, (ParamPart)part, &param))
            fail_msg("part %d of %s", part, job[0].model.param[param].name);
    for (int i = N - 1; i >= 0; i--) rank_close(&rank[i]);
    rank_close(&alone);
    arena_close(&a);
}

static void memory_is_counted_once(void **state)
{
    static Job job[N];
    Arena a;
    (void)state;
    DO(arena_open(&a, "set", ARENA_PLENTY));
    compile(&a, job);
    const LinkedProgram *p[] = {&job[0].linked, &job[1].linked, &job[2].linked};
    const ProgramSet set = {N, {p[0], p[1], p[2]}};
    assert_int_equal(program_set_bytes(&set, ARENA_STATE), p[0]->bytes[ARENA_STATE]);
    assert_int_equal(program_set_bytes(&set, ARENA_WORK), p[1]->bytes[ARENA_WORK]);
    assert_int_equal(program_set_bytes(&set, ARENA_STEP),
                     p[0]->bytes[ARENA_STEP] + p[1]->bytes[ARENA_STEP] + p[2]->bytes[ARENA_STEP]);
    assert_int_equal(program_set_extra_bytes(&set),
                     p[1]->bytes[ARENA_WORK] - p[0]->bytes[ARENA_WORK] + p[1]->bytes[ARENA_STEP] +
                         p[2]->bytes[ARENA_STEP]);
    arena_close(&a);
}

static void other_states_are_refused(void **state)
{
    static Job job, other;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    Arena a;
    (void)state;
    DO(arena_open(&a, "set", ARENA_PLENTY));
    set.parallel.mesh.dp_shard = 2;
    set.parallel.zero = 1;
    DO(job_compile(&set, &a, &job));
    const ProgramSet both = {2, {&job.linked, &other.linked}};
    set.parallel.zero = 0;
    DO(job_compile(&set, &a, &other));
    expect_error("zero", program_set_check(&both), ERR_CHECK, "their ZeRO levels or optimizers");
    UnitOptions units[2][8]; /* one layer's moments are sharded, in turn: as many bytes in all */
    const int n = (int)set.config->n_layers + 2;
    for (int i = 0; i < 2; i++)
        for (int u = 0; u < n; u++) {
            units[i][u] = job_unit_options(&set, u);
            units[i][u].zero = u == 1 + i;
        }
    set.parallel.units = units[1];
    DO(job_compile(&set, &a, &other));
    static Job first;
    set.parallel.units = units[0];
    DO(job_compile(&set, &a, &first));
    const ProgramSet turned = {2, {&first.linked, &other.linked}};
    assert_int_equal(first.linked.bytes[ARENA_STATE], other.linked.bytes[ARENA_STATE]);
    expect_error("layers", program_set_check(&turned), ERR_CHECK, "at another place");
    set.parallel.units = NULL;
    set.parallel.zero = 1;
    set.parallel.rank = 1;
    DO(job_compile(&set, &a, &other));
    expect_error("rank", program_set_check(&both), ERR_CHECK,
                 "program 1 is of rank 1 of 2, program 0 of rank 0 of 2");
    set.parallel.rank = 0;
    set.config = test_model("qwen2");
    DO(job_compile(&set, &a, &other));
    expect_error("model", program_set_check(&both), ERR_CHECK, "program 1 has");
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs_take_turns),
                                       cmocka_unit_test(memory_is_counted_once),
                                       cmocka_unit_test(other_states_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
