/* test_programs.c -- tables of programs: classes and variants that mix within a step. Micro-batches
 * and layers that recompute differently give the bits of a step that recomputes nothing, in memory
 * between both, exact to the byte. Tables that do not fit together are refused. */
#include "support/expect.h"

#include <stdio.h>
#include <string.h>
#include "support/world.h"

/* Links the job again with this table. */
static Err link_again(Job *job, const ProgramTable *t, Arena *arena)
{
    Layout *use;
    TRY(strategy_use(&job->strategy, &job->model, &job->mesh, arena, &use));
    return job_link(job, t, use, arena);
}

/* The job's table with copies of its programs for a second variant or a second class of layers. */
static Err grow(const Job *job, int classes, int variants, Arena *arena, ProgramTable *out)
{
    ProgramTable t = job->programs;
    int16_t *class_of, *kind_of, *variant_of;
    Program *program;
    const int old = t.n_classes, n = old + classes;
    TRY(ARENA_NEW(arena, job->model.n_units, &class_of));
    TRY(ARENA_NEW(arena, n, &kind_of));
    TRY(ARENA_NEW(arena, t.micros * t.slices, &variant_of));
    TRY(ARENA_NEW(arena, (int64_t)n * variants, &program));
    for (int u = 0; u < job->model.n_units; u++) class_of[u] = t.class_of[u];
    for (int c = 0; c < n; c++) kind_of[c] = c < old ? t.kind_of[c] : 1;
    for (int v = 0; v < variants; v++)
        for (int c = 0; c < n; c++) program[v * n + c] = t.program[kind_of[c]];
    *out = (ProgramTable){n, variants, class_of, kind_of, t.micros, t.slices, variant_of, program};
    return OK;
}

static Program *at(const ProgramTable *t, int class, int variant)
{
    return (Program *)(uintptr_t)&t->program[variant * t->n_classes + class];
}

static Err compile_with(const Job *job, const CompileOptions *o, int kind, Arena *arena,
                        Program *out)
{
    return compile_unit(&job->model.kind[kind], o, NULL, NULL, arena, out);
}

/* Odd micro-batches recompute everything. */
static Err by_micro(Job *job, Arena *arena)
{
    ProgramTable t;
    CompileOptions o = job_options(job, 1, 0);
    o.recompute = RECOMPUTE_FULL;
    if (!o.backward) return OK;
    TRY(grow(job, 0, 2, arena, &t));
    for (int m = 0; m < t.micros; m++) ((int16_t *)(uintptr_t)t.variant_of)[m] = (int16_t)(m % 2);
    TRY(compile_with(job, &o, 1, arena, at(&t, 1, 1)));
    return link_again(job, &t, arena);
}

/* The last layer recomputes everything. */
static Err by_layer(Job *job, Arena *arena)
{
    ProgramTable t;
    CompileOptions o = job_options(job, 1, 0);
    o.recompute = RECOMPUTE_FULL;
    if (!o.backward) return OK;
    TRY(grow(job, 1, 1, arena, &t));
    ((int16_t *)(uintptr_t)t.class_of)[job->model.n_units - 2] = (int16_t)(t.n_classes - 1);
    TRY(compile_with(job, &o, 1, arena, at(&t, t.n_classes - 1, 0)));
    return link_again(job, &t, arena);
}

static World world(int dp, int tp, int zero)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.schedule = "gpipe"; /* all frames are held at once */
    w.set.micros = 3;
    w.set.parallel.mesh.dp_shard = dp;
    w.set.parallel.mesh.tp = tp;
    w.set.parallel.zero = zero;
    w.steps = 2;
    return w;
}

static void programs_mix(void **state)
{
    static Err (*const change[])(Job *, Arena *) = {by_micro, by_layer};
    (void)state;
    for (int i = 0; i < 6; i++) {
        World w = world(1 + i % 2, 1 + i / 4, i % 2 ? 3 : 0);
        WorldResult plain, full, mixed;
        char what[128];
        DO(world_run_job(&w, &plain));
        w.set.compile.recompute = RECOMPUTE_FULL;
        DO(world_run_job(&w, &full));
        w.set.compile.recompute = RECOMPUTE_NONE;
        w.change = change[i / 2 % 2];
        if (world_run_job(&w, &mixed) != OK) fail_msg("%d: %s", i, err_text());
        if (!world_equal(&plain, &mixed, what)) fail_msg("%d: %s", i, what);
        const size_t work[] = {full.bytes[0][ARENA_WORK], mixed.bytes[0][ARENA_WORK],
                               plain.bytes[0][ARENA_WORK]};
        assert_true(work[0] < work[1] && work[1] < work[2]);
        world_peaks_are_exact("mixed programs", w);
        world_result_close(&plain);
        world_result_close(&full);
        world_result_close(&mixed);
    }
}

static void misfits_are_refused(void **state)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    Arena a;
    static Job job;
    ProgramTable t;
    CompileOptions o;
    (void)state;
    set.parallel.mesh.tp = 2;
    DO(arena_open(&a, "misfits", ARENA_PLENTY));
    DO(job_compile(&set, &a, &job));
    DO(programs_check(&job.programs, &job.model));

    DO(grow(&job, 1, 1, &a, &t));
    ((int16_t *)(uintptr_t)t.class_of)[0] = 1;
    expect_error("class", programs_check(&t, &job.model), ERR_CHECK,
                 "unit embed, of kind embed, is in class 1");
    DO(grow(&job, 0, 2, &a, &t));
    ((int16_t *)(uintptr_t)t.variant_of)[1] = 2;
    expect_error("variant", programs_check(&t, &job.model), ERR_CHECK,
                 "micro-batch 1, slice 0 has variant 2 of 2");
    DO(grow(&job, 0, 2, &a, &t));
    o = job_options(&job, 1, 0);
    o.backward = false;
    DO(compile_with(&job, &o, 1, &a, at(&t, 1, 1)));
    expect_error("ports", programs_check(&t, &job.model), ERR_CHECK,
                 "program layer: variant 1 leaves other sums");
    DO(grow(&job, 1, 1, &a, &t));
    ((int16_t *)(uintptr_t)t.class_of)[2] = (int16_t)(t.n_classes - 1);
    o = job_options(&job, 1, 0);
    const Strategy sequence = strategy_with_heads(&strategy_tp_sequence, set.config->n_heads,
                                                  set.config->n_kv_heads, set.config->head_size);
    o.strategy = &sequence;
    DO(compile_with(&job, &o, 1, &a, at(&t, t.n_classes - 1, 0)));
    expect_error("stream", programs_check(&t, &job.model), ERR_CHECK,
                 "unit head reads the stream in another layout than unit layer.1 writes it");
    arena_close(&a);
}

/* Slices of one length share a program: a variant per length, the longest first. */
static void slices_are_variants(void **state)
{
    static const int64_t cuts[] = {0, 2, 5, 7, 9};
    JobSettings set = test_job_settings("llama", JOB_STEP);
    Arena a;
    static Job job;
    (void)state;
    set.schedule = "seq1f1b";
    set.parallel.slices = 4;
    set.parallel.cuts = cuts;
    DO(arena_open(&a, "slices", ARENA_PLENTY));
    DO(job_compile(&set, &a, &job));
    const ProgramTable *t = &job.programs;
    assert_int_equal(t->n_variants, 2);
    assert_int_equal(job.variant[0].rows, 3);
    for (int m = 0; m < set.micros; m++)
        for (int q = 0; q < 4; q++)
            assert_ptr_equal(programs_at(t, 1, m, q), &t->program[(q != 1) * t->n_classes + 1]);
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs_mix),
                                       cmocka_unit_test(misfits_are_refused),
                                       cmocka_unit_test(slices_are_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
