/* test_pass_place_dims.c -- units whose tokens have several dims, compiled for ranks along cp;
 * nothing runs. The stream is pinned by frames, and the search finds where to switch. */
#include "place_test.h"

#include "ir/build.h"
#include "layout/tokens.h"

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
    Strategy s = {.name = "stream by frames", .row = stream_rows, .n = 2};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_dynamic_switches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
