/* test_scale.c -- large jobs compile fast, and as tightly as small ones: lists of a hundred
 * thousand actions, heads in a thousand chunks. Nothing runs. The time limit is generous, but
 * quadratic algorithms exceed it. */
#include <time.h>

#include "support/graph_test.h"
#include "job/job.h"

static const double max_seconds = 20;

static double seconds_since(clock_t start) { return (double)(clock() - start) / CLOCKS_PER_SEC; }

typedef struct {
    const char *layers, *schedule;
    int micros;
    bool split;
    Recompute recompute;
    const char *names, *offload;
} Large;

/* attn.q and mlp.gate are parts of larger GEMMs' outputs. */
static const Large large[] = {
    {"126", "gpipe", 512, false, RECOMPUTE_NONE, NULL, NULL},
    {"126", "1f1b", 512, true, RECOMPUTE_SELECTIVE, NULL, NULL},
    {"300", "gpipe", 64, true, RECOMPUTE_FULL, NULL, NULL},
    {"1000", "1f1b", 8, false, RECOMPUTE_NONE, NULL, "mlp.*,mid"},
    {"200", "gpipe", 8, false, RECOMPUTE_NAMED, "attn.q,mlp.gate", NULL},
};

static void compile_large(const Large *c, Arena *arena, ModelConfig *config, Job *job)
{
    const ModelField layers = {"num_hidden_layers", c->layers, "test", 2};
    DO(model_config_load("llama-tiny", &layers, 1, arena, config));
    const JobSettings set = {
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {1, 64},
        .micros = c->micros,
        .schedule = c->schedule,
        .split = c->split,
        .compile = {.recompute = c->recompute,
                    .recompute_names = c->names,
                    .offload_names = c->offload},
        .optim = {.kind = OPTIM_ADAMW, .block = 64},
    };
    DO(job_compile(&set, arena, job));
}

/* Checks that the regions at the peak sum to the live bytes, and that packing adds nothing. */
static void expect_tight(const LinkedProgram *lp)
{
    size_t live = 0;
    for (int r = 0; r < N_OWN_REGIONS; r++) live += lp->peak_region[r];
    assert_int_equal(live, lp->live[ARENA_WORK]);
    assert_int_equal(lp->bytes[ARENA_WORK], lp->live[ARENA_WORK]);
    assert_int_equal(lp->bytes[ARENA_HOST], lp->live[ARENA_HOST]);
}

/* The bytes of a region of an action. */
static size_t region_bytes(const LinkedProgram *lp, const LinkedAction *l, int r)
{
    const int unit = l->action.unit;
    if (r == REGION_SCRATCH) return l->program->scratch_bytes[l->action.phase];
    if (r == REGION_X) return programs_of_unit(&lp->programs, unit - 1)->bytes[REGION_Y];
    if (r == REGION_DY) return programs_of_unit(&lp->programs, unit + 1)->bytes[REGION_DX];
    return l->program->bytes[r];
}

/* Checks that the regions of an action are inside of the arena and disjoint. */
static void expect_apart(const LinkedProgram *lp, const LinkedAction *l)
{
    for (int r = 0; r <= REGION_DY; r++) {
        if (l->base[r] == NO_BASE) continue;
        const size_t end = l->base[r] + region_bytes(lp, l, r);
        assert_true(end <= lp->bytes[r == REGION_HOST ? ARENA_HOST : ARENA_WORK]);
        for (int q = 0; q < r; q++) {
            if (l->base[q] == NO_BASE || (q == REGION_HOST) != (r == REGION_HOST)) continue;
            assert_true(l->base[q] + region_bytes(lp, l, q) <= l->base[r] || end <= l->base[q]);
        }
    }
}

/* Checks that every RUN is bound: x of a unit is at the address of the y of the unit before it. */
static void expect_bound(const LinkedProgram *lp)
{
    size_t *y; /* address of y, by micro-batch and unit */
    Arena temp;
    DO(arena_open(&temp, "test", ARENA_PLENTY));
    DO(ARENA_NEW(&temp, lp->model->n_units * lp->micros, &y));
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        if (l->action.kind != A_RUN) continue;
        size_t *mine = &y[l->action.micro * lp->model->n_units + l->action.unit];
        expect_apart(lp, l);
        assert_true((l->base[REGION_SCRATCH] != NO_BASE) ==
                    (l->program->scratch_bytes[l->action.phase] > 0));
        if (l->action.phase != PHASE_F) continue;
        *mine = l->base[REGION_Y];
        if (l->action.unit > 0) assert_int_equal(l->base[REGION_X], mine[-1]);
    }
    arena_close(&temp);
}

static void large_lists_link_fast(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        const Large *c = &large[i];
        Arena arena;
        ModelConfig config;
        Job job;
        DO(arena_open(&arena, "test", ARENA_PLENTY));
        const clock_t start = clock();
        compile_large(c, &arena, &config, &job);
        const double seconds = seconds_since(start);
        if (seconds > max_seconds)
            fail_msg("%s layers x %d, %s: %g s", c->layers, c->micros, c->schedule, seconds);
        const LinkedProgram *lp = &job.linked;
        const int units = lp->model->n_units;
        assert_int_equal(lp->n, units * c->micros * (c->split ? 3 : 2) + 1 + units);
        expect_tight(lp);
        expect_bound(lp);
        arena_close(&arena);
    }
}

enum { VOCAB = 9, ROWS = 2 };

/* A head of `chunks` chunks of ROWS rows, except for the last, which has one row. */
static CompileOptions build_head(GraphTest *b, int chunks)
{
    const Dim rows = dim_of(chunks * ROWS - 1);
    graph_test_open(b, "head");
    const Value x = stream_in(&b->g, rows, D), w = graph_test_w(b, "v", VOCAB, D);
    const Value targets = input(&b->g, INPUT_TARGETS, rows);
    token_loss(&b->g, x, w, targets, input(&b->g, INPUT_WEIGHTS, rows));
    DO(graph_err(&b->g));
    return (CompileOptions){.chunk_elements = ROWS * VOCAB,
                            .backward = true,
                            .strategy = &strategy_tp,
                            .mesh = &b->mesh};
}

static void compile_head(GraphTest *b, int chunks, Program *out)
{
    const CompileOptions options = build_head(b, chunks);
    DO(compile_unit(&b->g, &options, NULL, NULL, &b->arena, out));
}

static void large_heads_compile_fast(void **state)
{
    enum { FEW = 3, MANY = 900 };
    GraphTest few_bed, many_bed;
    Program few, many;
    (void)state;
    compile_head(&few_bed, FEW, &few);
    const clock_t start = clock();
    compile_head(&many_bed, MANY, &many);
    const double seconds = seconds_since(start);
    if (seconds > max_seconds) fail_msg("%d chunks: %g s", MANY, seconds);
    assert_int_equal(few.n_instr % FEW, 0);
    assert_int_equal(many.n_instr, few.n_instr / FEW * MANY);
    assert_int_equal(many.scratch_bytes[PHASE_F], many.scratch_live[PHASE_F]);
    assert_int_equal(many.scratch_bytes[PHASE_F], few.scratch_bytes[PHASE_F]);
    assert_int_equal(many.n_out, few.n_out);
    graph_test_close(&few_bed);
    graph_test_close(&many_bed);
}

/* Compares both lookups after each pass. Sums have a maker in every chunk; the first one counts. */
static Err compare_makers(void *context, const char *pass, const Graph *g)
{
    int *maker, *most = context;
    TRY(graph_makers(g, g->arena, &maker));
    for (Value v = 0; v < g->n_values; v++)
        if (maker[v] != graph_maker(g, v))
            fail_msg("after %s: value %%%d: %d, not %d", pass, v, maker[v], graph_maker(g, v));
    if (*most < g->n_nodes) *most = g->n_nodes;
    return OK;
}

static void graph_makers_equal_graph_maker(void **state)
{
    enum { CHUNKS = 20 };
    GraphTest b;
    Program p;
    int most = 0;
    (void)state;
    const CompileOptions options = build_head(&b, CHUNKS);
    DO(compile_unit(&b.g, &options, compare_makers, &most, &b.arena, &p));
    assert_true(most > 7 * CHUNKS);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_lists_link_fast),
        cmocka_unit_test(large_heads_compile_fast),
        cmocka_unit_test(graph_makers_equal_graph_maker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
