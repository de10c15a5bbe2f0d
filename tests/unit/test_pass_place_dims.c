/* test_pass_place_dims.c -- units whose tokens have several dims, compiled for ranks along cp;
 * nothing runs. The stream is pinned by frames, and the search finds where to switch. */
#include "place_test.h"

#include "compile/context/plan.h"
#include "ir/build.h"
#include "layout/tokens.h"
#include "support/clips.h"

enum { WIDTH = 1152, CHANNELS = 72 };

/* Attention along one dim and its residual: x + o attention(norm x). */
static Value attend(GraphTest *b, Value x, int number, int64_t length, int64_t inner)
{
    static const char *const name[] = {"norm", "q_proj", "k_proj", "v_proj", "o_proj"};
    Graph *g = &b->g;
    Value w[5];
    for (int i = 0; i < 5; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s%d.weight", name[i], number);
        w[i] = i ? graph_test_w(b, text, WIDTH, WIDTH) : vector(g, text, WIDTH, INIT_ONES);
    }
    const Value a = rmsnorm(g, x, w[0], 1e-5);
    const Value q = heads(g, linear(g, a, w[1], NO_VALUE), CHANNELS);
    const Value k = heads(g, linear(g, a, w[2], NO_VALUE), CHANNELS);
    const Value v = heads(g, linear(g, a, w[3], NO_VALUE), CHANNELS);
    const Value o = attention_along(g, q, k, v, length, inner, 1);
    return add(g, x, linear(g, merge(g, o), w[4], NO_VALUE));
}

/* One unit with `n` stages, each along one dim. */
static void build_stages(GraphTest *b, int64_t rows, int n, const int64_t stage[][2])
{
    graph_test_open(b, "layer");
    Value x = stream_in(&b->g, dim_of(rows), WIDTH);
    for (int i = 0; i < n; i++) x = attend(b, x, i, stage[i][0], stage[i][1]);
    stream_out(&b->g, x);
    DO(graph_err(&b->g));
}

static const StrategyRow stream_rows[] = {{"x", "cp", 0, BY_TOKENS}, {"y", "cp", 0, BY_TOKENS}};

static void open_by_frames(Ranks *r, const GraphTest *b, int64_t frames, int64_t places, int cp)
{
    Mesh mesh;
    Strategy s = {.name = "stream by frames", .row = stream_rows, .n = 2, .switches = true};
    DO(mesh_sized(&(MeshSizes){.cp = cp}, &mesh));
    Arena arena;
    DO(arena_open(&arena, "map", ARENA_PLENTY));
    DO(tokens_by_frames(&arena, 1, frames, places, cp, &s.tokens));
    ranks_open_mesh(r, &b->g, &(CompileOptions){.backward = true, .strategy = &s}, &mesh);
    arena_close(&arena);
}

/* No row pins attention. The whole exchange of a pair of stages is four all-to-alls of the stream,
 * two forward and two backward: each rank sends 4 f M / P elements, f = (P - 1) / P. */
static void the_search_finds_dynamic_switches(void **state)
{
    static const int64_t size[][2] = {{4, 640}, {6, 1200}, {8, 400}};
    (void)state;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (int cp = 2; cp <= 4; cp++) {
            const int64_t frames = size[i][0], places = size[i][1];
            const int64_t stage[][2] = {{places, 1}, {frames, places}};
            const int64_t elements = frames * places * WIDTH;
            if (frames % cp || places % cp) continue;
            GraphTest b;
            Ranks r;
            build_stages(&b, frames * places, 2, stage);
            open_by_frames(&r, &b, frames, places, cp);
            ranks_agree(&r, "pair");
            const int64_t switches = 2 * elements * (cp - 1) / cp;
            assert_int_equal(ranks_sent(&r, PHASE_F, OP_all_to_all), switches);
            assert_int_equal(ranks_sent_all(&r, PHASE_F), switches);
            assert_int_equal(ranks_sent_all(&r, PHASE_I) + ranks_sent_all(&r, PHASE_W), switches);
            ranks_close(&r);
            graph_test_close(&b);
        }
}

/* K = 3: of three stages, the one along frames alone switches. Extents that ranks do not divide are
 * divided as evenly as possible. */
static void three_dims_and_uneven_ones(void **state)
{
    static const int64_t stage[][2] = {{12, 1}, {24, 12}, {7, 288}};
    const int64_t rows = 7 * 24 * 12;
    (void)state;
    for (int cp = 2; cp <= 4; cp++) {
        GraphTest b;
        Ranks r;
        build_stages(&b, rows, 3, stage);
        open_by_frames(&r, &b, 7, 288, cp);
        ranks_agree(&r, "three");
        assert_int_equal(ranks_sent_all(&r, PHASE_F), ranks_sent(&r, PHASE_F, OP_all_to_all));
        /* A switch sends all but what both shares of a rank have. */
        int64_t stay = 0;
        for (int p = 0; p < cp; p++)
            stay += span_count(even_part(7, 1, cp, p)) * span_count(even_part(288, 1, cp, p));
        const int64_t all = (7 * 288 - stay) * WIDTH;
        assert_int_equal(ranks_sent_all(&r, PHASE_F), 2 * all);
        assert_int_equal(ranks_sent_all(&r, PHASE_I) + ranks_sent_all(&r, PHASE_W), 2 * all);
        ranks_close(&r);
        graph_test_close(&b);
    }
}

enum { FRAMES = 12, PLACES = 960 };

/* Elements that all ranks send for a spatial and a temporal unit, forward and backward. */
static int64_t sent_by_pair(ContextKind kind, const MeshSizes *sizes, bool sequence, Recompute re)
{
    const int parts = sizes->cp > 1 ? sizes->cp : sizes->tp;
    ModelConfig c = clips_config(2, 2, FRAMES, PLACES);
    c.width = WIDTH, c.ff_width = 4 * WIDTH;
    c.n_heads = c.n_kv_heads = 12, c.head_size = WIDTH / 12;
    Arena arena;
    Model m;
    Mesh mesh;
    int64_t sent = 0;
    DO(arena_open(&arena, "pair", ARENA_PLENTY));
    DO(model_build(&c, F64, (BatchShape){1, FRAMES * PLACES}, &arena, &m));
    DO(mesh_sized(sizes, &mesh));
    const Strategy *tp = sequence ? &strategy_tp_sequence : &strategy_tp;
    const Strategy base = strategy_with_clips(tp, kind, &mesh);
    Strategy s = strategy_with_heads(&base, c.n_heads, c.n_kv_heads, c.head_size);
    DO(tokens_by_frames(&arena, 1, FRAMES, PLACES, parts, &s.tokens));
    const ContextRow *ring = NULL;
    if (kind == CONTEXT_RING) DO(context_row("ring", &arena, &ring));
    for (int unit = 1; unit <= 2; unit++) {
        Ranks r;
        ranks_open_mesh(
            &r, &m.kind[unit],
            &(CompileOptions){
                .backward = true, .strategy = &s, .recompute = re, .context = {.row = ring}},
            &mesh);
        for (int phase = 0; phase < PHASE_B; phase++) sent += ranks_sent_all(&r, (Phase)phase);
        ranks_close(&r);
    }
    arena_close(&arena);
    return sent;
}

/* Of each rank, with f = (P - 1) / P: DSP 4 f M / P, Ulysses 8 f M / P, ring and gather 6 f M,
 * Megatron's sequence parallelism 10 f M for each of the two units. */
static void ways_send_what_formulas_say(void **state)
{
    const int64_t elements = (int64_t)FRAMES * PLACES * WIDTH;
    (void)state;
    for (int p = 2; p <= 6; p++) {
        const MeshSizes cp = {.cp = p}, tp = {.tp = p};
        const int64_t all = (p - 1) * elements; /* f M, of p ranks */
        if (p == 5) continue;                   /* divides neither frames nor heads */
        assert_int_equal(sent_by_pair(CONTEXT_DSP, &cp, false, RECOMPUTE_NONE), 4 * all / p);
        assert_int_equal(sent_by_pair(CONTEXT_ULYSSES, &cp, false, RECOMPUTE_NONE), 8 * all / p);
        assert_int_equal(sent_by_pair(CONTEXT_RING, &cp, false, RECOMPUTE_NONE), 6 * all);
        assert_int_equal(sent_by_pair(CONTEXT_GATHER, &cp, false, RECOMPUTE_NONE), 6 * all);
        assert_int_equal(sent_by_pair(CONTEXT_AUTO, &tp, true, RECOMPUTE_NONE), 20 * all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_dynamic_switches),
        cmocka_unit_test(three_dims_and_uneven_ones),
        cmocka_unit_test(ways_send_what_formulas_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
