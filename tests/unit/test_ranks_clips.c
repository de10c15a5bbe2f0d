/* test_ranks_clips.c -- models of clips on many ranks are those of one rank: in f64 within 1e-10,
 * with the bytes that were predicted, for every way to shard attention along frames. */
#include "support/expect.h"

#include <stdio.h>
#include "schedule/traffic.h"
#include "support/clips.h"
#include "support/world.h"

typedef struct {
    MeshSizes mesh;
    ContextKind context;
    int dims;
    int64_t frames, places;
    int zero;
    bool sequence;
    const char *schedule;
    Recompute recompute;
} ClipsCase;

static const ClipsCase cases[] = {
    {{.cp = 2}, CONTEXT_DSP, 2, 4, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 3}, CONTEXT_DSP, 2, 5, 7, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 4}, CONTEXT_DSP, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_SELECTIVE},
    {{.cp = 6}, CONTEXT_DSP, 2, 7, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2}, CONTEXT_GATHER, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 3}, CONTEXT_GATHER, 2, 4, 5, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 2}, CONTEXT_ULYSSES, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 4}, CONTEXT_ULYSSES, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 3}, CONTEXT_ULYSSES, 2, 4, 5, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2}, CONTEXT_RING, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 3}, CONTEXT_RING, 2, 5, 4, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 4}, CONTEXT_RING, 2, 6, 4, 0, false, "1f1b", RECOMPUTE_SELECTIVE},
    {{.cp = 6}, CONTEXT_RING, 2, 8, 3, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.tp = 2}, CONTEXT_AUTO, 2, 4, 6, 0, true, "1f1b", RECOMPUTE_NONE},
    {{.tp = 3}, CONTEXT_AUTO, 2, 4, 5, 0, true, "1f1b", RECOMPUTE_FULL},
    {{.tp = 4}, CONTEXT_AUTO, 2, 5, 5, 0, true, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2}, CONTEXT_DSP, 3, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 3}, CONTEXT_DSP, 3, 4, 6, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 4}, CONTEXT_DSP, 3, 4, 10, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 3}, CONTEXT_RING, 3, 4, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2}, CONTEXT_ULYSSES, 3, 3, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.tp = 2}, CONTEXT_AUTO, 3, 3, 6, 0, true, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2, .dp_shard = 2}, CONTEXT_DSP, 2, 5, 6, 3, false, "1f1b", RECOMPUTE_FULL},
    {{.cp = 3, .dp_shard = 2}, CONTEXT_DSP, 2, 5, 6, 1, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2, .dp_shard = 2}, CONTEXT_RING, 2, 5, 6, 3, false, "1f1b", RECOMPUTE_NONE},
    {{.cp = 2, .dp_shard = 2}, CONTEXT_ULYSSES, 2, 4, 6, 2, false, "1f1b", RECOMPUTE_FULL},
    {{.tp = 2, .cp = 2}, CONTEXT_DSP, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.tp = 2, .cp = 2}, CONTEXT_RING, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_FULL},
    {{.tp = 2, .cp = 2}, CONTEXT_ULYSSES, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.tp = 2, .cp = 2}, CONTEXT_DSP, 2, 4, 6, 0, true, "1f1b", RECOMPUTE_NONE},
    {{.tp = 2, .cp = 2}, CONTEXT_RING, 2, 5, 6, 0, true, "1f1b", RECOMPUTE_NONE},
    {{.pp = 2, .cp = 2}, CONTEXT_DSP, 2, 5, 6, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.pp = 2, .cp = 3}, CONTEXT_DSP, 2, 4, 5, 1, false, "zbv", RECOMPUTE_SELECTIVE},
    {{.pp = 2, .cp = 2}, CONTEXT_RING, 2, 5, 6, 0, false, "interleaved", RECOMPUTE_FULL},
};

static World world_of_case(const ClipsCase *c, const ModelConfig *config, bool alone)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.config = config;
    w.set.batch = (BatchShape){2, c->frames * c->places};
    w.set.micros = alone ? 2 * (c->mesh.dp_shard ? c->mesh.dp_shard : 1) : 2;
    w.steps = 2;
    if (alone) return w;
    w.set.parallel.mesh = c->mesh;
    w.set.parallel.context = c->context;
    w.set.parallel.zero = c->zero;
    w.set.parallel.sequence = c->sequence;
    w.set.schedule = c->schedule;
    w.set.compile.recompute = c->recompute;
    return w;
}

static void expect_same(const ClipsCase *c, int number)
{
    const ModelConfig config = clips_config(c->dims == 2 ? 4 : 6, c->dims, c->frames, c->places);
    const World one = world_of_case(c, &config, true), many = world_of_case(c, &config, false);
    WorldResult a, b;
    if (world_run_job(&one, &a) != OK) fail_msg("case %d, one rank: %s", number, err_text());
    if (world_run_job(&many, &b) != OK) fail_msg("case %d: %s", number, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("case %d: off by %g", number, off);
    int64_t sent = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sent += b.sent[k];
    if (sent != b.predicted)
        fail_msg("case %d: %lld bytes sent, %lld predicted", number, (long long)sent,
                 (long long)b.predicted);
    world_result_close(&a);
    world_result_close(&b);
}

static void many_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_same(&cases[i], (int)i);
}

/* Weights that travel from rank to rank, next to each way to shard attention. */
static void weights_are_streamed(void **state)
{
    static const ContextKind kind[] = {CONTEXT_DSP, CONTEXT_RING, CONTEXT_ULYSSES};
    (void)state;
    for (int cp = 2; cp <= 4; cp++) {
        const ClipsCase c = {.mesh = {.cp = cp, .stream_weights = true},
                             .context = kind[cp - 2],
                             .dims = 2,
                             .frames = 5,
                             .places = 6,
                             .zero = cp - 1,
                             .schedule = "1f1b",
                             .recompute = cp == 3 ? RECOMPUTE_FULL : RECOMPUTE_NONE};
        expect_same(&c, 100 + cp);
    }
}

/* The peak is the predicted one, and lower than that of ZeRO 3 over cp, which gathers a layer. */
static void streamed_weights_need_less(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 4; cp++) {
        const ClipsCase c = {.mesh = {.cp = cp, .stream_weights = true},
                             .context = CONTEXT_DSP,
                             .dims = 2,
                             .frames = 4,
                             .places = 6,
                             .zero = 3,
                             .schedule = "1f1b",
                             .recompute = RECOMPUTE_FULL};
        ClipsCase gathered = c;
        ModelConfig config = clips_config(4, 2, c.frames, c.places);
        size_t bytes[2] = {0, 0};
        config.ff_width = 96;
        gathered.mesh.stream_weights = false;
        World streams = world_of_case(&c, &config, false);
        world_peaks_are_exact("streamed weights of clips", streams);
        for (int i = 0; i < 2; i++) {
            const World w = world_of_case(i ? &gathered : &c, &config, false);
            WorldResult r;
            DO(world_run_job(&w, &r));
            for (int a = 0; a < N_ARENAS; a++) bytes[i] += r.bytes[0][a];
            world_result_close(&r);
        }
        if (bytes[0] >= bytes[1])
            fail_msg("cp=%d: %zu bytes with streamed weights, %zu with ZeRO 3", cp, bytes[0],
                     bytes[1]);
    }
}

/* Elements that all ranks send in a step, by kind, as linking counts them. */
static void count_sent(JobSettings set, int64_t sent[N_COMM_KINDS])
{
    Arena arena;
    Job job;
    memset(sent, 0, N_COMM_KINDS * sizeof *sent);
    for (int rank = 0; rank < set.parallel.mesh.cp; rank++) {
        Traffic t;
        set.parallel.rank = rank;
        DO(arena_open(&arena, "job", ARENA_PLENTY));
        DO(job_compile(&set, &arena, &job));
        DO(linked_traffic(&job.linked, &t));
        for (int i = 0; i < t.n; i++)
            if (!t.row[i].scalar) sent[t.row[i].kind] += (int64_t)(t.row[i].sent_bytes / 8);
        arena_close(&arena);
    }
}

/* stdit: W are the matrices of attention and MLP of all layers, which travel; keys are gathered in
 * layers that attend along frames alone. With P ranks these send (P-1) (3 W + 6 B S K), so each
 * f (3 W + 6 B S K) with f = (P-1)/P. dsp switches instead, 4 f M/P for each such layer. Gradients
 * of all other parameters are summed over the ranks. */
static void elements_of_streamed_stdit(void **state)
{
    static const char *const dims[] = {"2", "3"};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int cp = 2; cp <= 4; cp++) {
            Arena arena;
            ModelConfig c;
            const ModelField field[] = {{"attention_dims", dims[i], "test", 1},
                                        {"num_hidden_layers", "6", "test", 1},
                                        {"num_frames", "12", "test", 1},
                                        {"latent_height", "12", "test", 1},
                                        {"latent_width", "16", "test", 1}};
            int64_t sent[N_COMM_KINDS], other = 0;
            DO(arena_open(&arena, "config", ARENA_PLENTY));
            DO(model_config_load("stdit-tiny", field, 5, &arena, &c));
            JobSettings set = test_job_settings("llama", JOB_STEP);
            Model model;
            set.config = &c;
            set.batch = (BatchShape){2, c.max_positions};
            set.micros = 3;
            set.parallel.mesh = (MeshSizes){.cp = cp, .stream_weights = true};
            const int64_t w = c.n_layers * c.width * (4 * c.width + 2 * c.ff_width);
            const int64_t rows = 2 * c.max_positions * c.width; /* B S K */
            const int64_t along = c.n_layers / (i + 2), times = set.micros * (cp - 1);
            DO(model_build(&c, set.dtype, set.batch, &arena, &model));
            for (int p = 0; p < model.n_params; p++) other += model.param[p].count;
            other -= w;
            set.parallel.context = CONTEXT_GATHER;
            count_sent(set, sent);
            assert_int_equal(sent[COMM_SEND], times * 3 * w);
            assert_int_equal(sent[COMM_ALL_GATHER], times * 4 * along * rows);
            assert_int_equal(sent[COMM_REDUCE_SCATTER], times * 2 * along * rows);
            assert_int_equal(sent[COMM_ALL_REDUCE], 2 * (cp - 1) * other);
            set.parallel.context = CONTEXT_DSP;
            count_sent(set, sent);
            assert_int_equal(sent[COMM_SEND], times * 3 * w);
            assert_int_equal(sent[COMM_ALL_GATHER] + sent[COMM_REDUCE_SCATTER], 0);
            assert_int_equal(cp * sent[COMM_ALL_TO_ALL], times * 4 * along * rows);
            arena_close(&arena);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(weights_are_streamed),
        cmocka_unit_test(streamed_weights_need_less),
        cmocka_unit_test(elements_of_streamed_stdit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
