/* test_ranks_memory.c -- the peak memory of every rank is known before launch. Arenas are filled
 * with a pattern and a step runs; the highest byte that changed, under either of two complementary
 * patterns, equals the size that linking computed. */
#include "support/expect.h"

#include "support/world.h"

static void peaks(void **state)
{
    (void)state;
    static const char *const model[] = {"llama", "gpt2"};
    for (int variant = 0; variant < 32; variant++) {
        World w = world_of(test_job_settings(model[variant % 2], JOB_STEP));
        ParallelSettings *p = &w.set.parallel;
        p->zero = variant / 2 % 4;
        p->mesh.dp_shard = 2 + variant % 3;
        p->mesh.dp_replicate = 1 + variant / 8 % 2;
        p->reduce_each = variant / 16;
        w.set.schedule = variant % 3 ? "gpipe" : "1f1b";
        w.set.split = variant % 5 == 0;
        w.set.micros = 1 + variant % 3;
        w.set.compile.recompute = variant % 4 ? RECOMPUTE_NONE : RECOMPUTE_FULL;
        world_peaks_are_exact(model[variant % 2], w);
    }
}

static void peaks_with_tensor(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        World w = world_of(test_job_settings("llama", JOB_STEP));
        w.set.parallel.mesh = (MeshSizes){1, 2, 2 + variant / 4, 1, 0, 0, 0, 0, false};
        w.set.parallel.zero = variant % 4;
        w.set.parallel.sequence = variant % 2;
        world_peaks_are_exact("tp", w);
    }
}

/* Slices: memory that lives across slices, and slices of different lengths. */
static void peaks_in_slices(void **state)
{
    static const char *const model[] = {"llama", "gpt2", "qwen3"};
    static const char *const schedule[] = {"seq1f1b", "terapipe", "gpipe"};
    static const int64_t even[] = {0, 3, 6, 9}, uneven[] = {0, 5, 7, 9};
    (void)state;
    for (int variant = 0; variant < 24; variant++) {
        World w = world_of(test_job_settings(model[variant % 3], JOB_STEP));
        ParallelSettings *p = &w.set.parallel;
        p->slices = 3;
        p->cuts = variant % 2 ? even : uneven;
        p->zero = variant / 2 % 4;
        p->mesh = (MeshSizes){
            1, 1 + variant % 3, 1 + variant / 8 % 2, 1 + variant / 4 % 2, 0, 0, 0, 0, false};
        w.set.schedule = schedule[variant / 3 % 3];
        w.set.split = variant % 5 == 0;
        w.set.micros = 1 + variant % 3;
        w.set.compile.recompute = variant % 4 ? RECOMPUTE_NONE : RECOMPUTE_FULL;
        world_peaks_are_exact(model[variant % 3], w);
    }
}

/* Gradients reduced after each micro-batch are never whole in the step arena, even with one. */
static void sharded_gradients(void **state)
{
    (void)state;
    for (int micros = 1; micros < 3; micros++) {
        Arena arena;
        Job job;
        JobSettings set = test_job_settings("llama", JOB_STEP);
        set.micros = micros;
        set.parallel.mesh.dp_shard = 4;
        set.parallel.zero = 3;
        DO(arena_open(&arena, "shares", ARENA_PLENTY));
        DO(job_compile(&set, &arena, &job));
        for (int p = 0; p < job.model.n_packs; p++)
            assert_true(job.linked.pack[p].grad_sums == NO_BASE);
        arena_close(&arena);
    }
}

/* Validation uses the work memory of training, which is always larger, and allocates only its
 * inputs. Training does not fit into the memory of validation. */
static void validation_shares_memory(void **state)
{
    static const char *const model[] = {"llama", "gpt2", "qwen3"};
    static const Recompute recompute[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    (void)state;
    for (int variant = 0; variant < 36; variant++) {
        Arena arena;
        Job job, valid;
        JobSettings set = test_job_settings(model[variant % 3], JOB_STEP);
        set.compile.recompute = recompute[variant / 3 % 3];
        set.parallel.mesh.dp_shard = 1 + variant / 9;
        set.parallel.zero = variant / 9;
        DO(arena_open(&arena, "shared", ARENA_PLENTY));
        DO(job_compile(&set, &arena, &job));
        set.kind = JOB_LOSS;
        DO(job_compile(&set, &arena, &valid));
        const LinkedProgram *step = &job.linked, *loss = &valid.linked;
        const ProgramSet both = {2, {step, loss}}, turned = {2, {loss, step}};
        DO(program_set_check(&both));
        assert_int_equal(program_set_extra_bytes(&both), loss->bytes[ARENA_STEP]);
        assert_true(step->bytes[ARENA_WORK] > loss->bytes[ARENA_WORK]);
        assert_int_equal(program_set_own_bytes(&turned, 0, ARENA_WORK), step->bytes[ARENA_WORK]);
        assert_int_equal(program_set_own_bytes(&turned, 1, ARENA_WORK), 0);
        assert_int_equal(program_set_bytes(&turned, ARENA_STEP),
                         step->bytes[ARENA_STEP] + loss->bytes[ARENA_STEP]);
        arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sharded_gradients),
                                       cmocka_unit_test(validation_shares_memory),
                                       cmocka_unit_test(peaks), cmocka_unit_test(peaks_in_slices),
                                       cmocka_unit_test(peaks_with_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
