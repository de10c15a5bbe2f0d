/* test_ranks_pipeline_memory.c -- memory of pipeline stages is known before launch: the highest
 * byte that a step touches is the one that linking computed, on every rank. 1f1b holds at most
 * min(P - r, m) micro-batches on stage r. */
#include "support/expect.h"

#include <string.h>
#include "support/world.h"

static void peaks(void **state)
{
    (void)state;
    static const char *const schedule[] = {"gpipe", "1f1b", "interleaved", "bfs",      "zbh1",
                                           "zbh2",  "izb",  "zbv",         "dualpipev"};
    static const char *const model[] = {"llama", "gpt2"};
    for (int variant = 0; variant < 36; variant++) {
        World w = world_of(test_job_settings(model[variant % 2], JOB_STEP));
        ModelConfig config = *w.set.config;
        ParallelSettings *p = &w.set.parallel;
        config.n_layers = 5;
        w.set.config = &config;
        w.set.micros = 1 + variant % 5;
        w.set.compile.recompute = variant % 4 ? RECOMPUTE_NONE : RECOMPUTE_FULL;
        p->mesh = (MeshSizes){
            1, 1 + variant % 3, variant % 3 ? 1 : 2, 2 + variant / 9 % 2, 0, 0, 0, 0, false};
        p->zero = p->mesh.dp_shard > 1 ? variant / 3 % 4 : 0;
        p->sequence = variant % 2 && p->mesh.tp > 1;
        p->schedule = schedule[variant % 9];
        p->in_order = variant % 7 == 3;
        world_peaks_are_exact(p->schedule, w);
    }
}

/* The same with frames that are evicted to other stages and fetched. */
static void peaks_with_evicted_frames(void **state)
{
    (void)state;
    static const struct {
        const char *schedule;
        int pp, micros;
    } row[] = {{"1f1b", 4, 5}, {"1f1b", 6, 6},      {"interleaved", 3, 6},
               {"zbv", 4, 4},  {"dualpipev", 4, 5}, {"seq1f1b", 4, 3}};
    for (int i = 0; i < 6; i++) {
        World w = world_of(test_job_settings(i % 2 ? "gpt2" : "llama", JOB_STEP));
        ModelConfig config = *w.set.config;
        ParallelSettings *p = &w.set.parallel;
        config.n_layers = 7;
        w.set.config = &config;
        w.set.micros = row[i].micros;
        w.set.compile.recompute = i == 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        p->mesh =
            (MeshSizes){1, i % 3 == 2 ? 2 : 1, i % 3 == 0 ? 2 : 1, row[i].pp, 0, 0, 0, 0, false};
        p->zero = p->mesh.dp_shard > 1 ? 3 : 0;
        p->schedule = row[i].schedule;
        p->in_order = i == 3;
        p->evict = true;
        world_peaks_are_exact(p->schedule, w);
    }
}

static Job compile_stage(JobSettings *set, int rank, Arena *arena)
{
    Job job;
    set->parallel.rank = rank;
    DO(job_compile(set, arena, &job));
    return job;
}

/* Stages with layers alone: the frames of exactly that many micro-batches. */
static void frames_by_stage(void **state)
{
    (void)state;
    enum { P = 5, EACH = 3 };
    Arena arena;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    ModelConfig config = *set.config;
    config.n_layers = P * EACH;
    set.config = &config;
    set.parallel.mesh.pp = P;
    DO(arena_open(&arena, "frames", ARENA_PLENTY));
    for (set.micros = 1; set.micros < 9; set.micros++)
        for (int r = 1; r < P - 1; r++) {
            const Job job = compile_stage(&set, r, &arena);
            const Program *layer = &job.program[job.model.unit[1].kind];
            const size_t frame =
                align_up(layer->bytes[REGION_FRAME_I]) + align_up(layer->bytes[REGION_FRAME_W]);
            const size_t most = (size_t)(P - r < set.micros ? P - r : set.micros);
            const size_t held =
                job.linked.peak_region[REGION_FRAME_I] + job.linked.peak_region[REGION_FRAME_W];
            if (held != most * EACH * frame)
                fail_msg("stage %d of %d, %d micro-batches: frames of %zu bytes, not %zu", r, P,
                         set.micros, held, most * EACH * frame);
        }
    arena_close(&arena);
}

/* With eviction no stage holds more than ceil((P + 2) / 2) + 1 frames, its own and others'. Without
 * it the first stage holds P. From 6 stages on eviction holds fewer frames and fewer bytes. */
static void evicted_frames_are_bounded(void **state)
{
    (void)state;
    for (int P = 4; P < 9; P++) {
        Arena arena;
        JobSettings set = test_job_settings("llama", JOB_STEP);
        ModelConfig config = *set.config;
        size_t most[2] = {0, 0}, first[2] = {0, 0};
        config.n_layers = P;
        set.config = &config;
        set.parallel.mesh.pp = P;
        set.micros = 2 * P;
        DO(arena_open(&arena, "lent", ARENA_PLENTY));
        for (int evict = 0; evict < 2; evict++)
            for (int r = 0; r < P; r++) {
                set.parallel.evict = evict;
                const Job job = compile_stage(&set, r, &arena);
                const Program *layer = &job.program[job.model.unit[1].kind];
                const size_t frame =
                    align_up(layer->bytes[REGION_FRAME_I]) + align_up(layer->bytes[REGION_FRAME_W]);
                const size_t held =
                    job.linked.peak_region[REGION_FRAME_I] + job.linked.peak_region[REGION_FRAME_W];
                if (held / frame > most[evict]) most[evict] = held / frame;
                assert_int_equal(job.linked.bytes[ARENA_HOST], 0);
                if (r == 0) first[evict] = job.linked.bytes[ARENA_WORK];
            }
        assert_int_equal(most[0], P);
        if (most[1] > (size_t)(P + 3) / 2 + 1) fail_msg("%d stages: %zu frames", P, most[1]);
        if (P >= 6 && first[1] >= first[0])
            fail_msg("%d stages: the first takes %zu bytes, and %zu without", P, first[1],
                     first[0]);
        arena_close(&arena);
    }
}

/* A stage has the parameters of its own units, and a copy of those that it shares with another
 * stage. */
static void state_by_stage(void **state)
{
    (void)state;
    static const char *const model[] = {"llama", "llama-tied"};
    for (int tied = 0; tied < 2; tied++) {
        Arena arena;
        JobSettings set = test_job_settings(model[tied], JOB_STEP);
        ModelConfig config = *set.config;
        int64_t sum = 0, whole;
        config.n_layers = 4;
        set.config = &config;
        set.parallel.mesh.pp = 3;
        DO(arena_open(&arena, "state", ARENA_PLENTY));
        for (int r = 0; r < 3; r++) {
            const Job job = compile_stage(&set, r, &arena);
            whole = model_param_count(&job.model);
            for (int p = 0; p < job.model.n_packs; p++) sum += job.linked.pack[p].mine.pack_count;
        }
        assert_int_equal(sum, whole + (tied ? config.vocab * config.width : 0));
        arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(frames_by_stage),
                                       cmocka_unit_test(evicted_frames_are_bounded),
                                       cmocka_unit_test(state_by_stage), cmocka_unit_test(peaks),
                                       cmocka_unit_test(peaks_with_evicted_frames)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
