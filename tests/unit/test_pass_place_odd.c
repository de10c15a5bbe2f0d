/* test_pass_place_odd.c -- unusual strategies: some weights sharded and others not, the stream
 * sharded across, pins in the middle. Values are then resharded from cut to cut, and messages
 * that are not contiguous are packed. All ranks compile, and their transfers match, though only
 * some of them pack. */
#include "place_units.h"

static void try_odd(Builder build, const Strategy *s, int tp, int variant)
{
    GraphTest b;
    Ranks r;
    char name[96];
    build(&b);
    DO(graph_err(&b.g));
    const CompileOptions o = {.backward = true,
                              .strategy = s,
                              .chunk_elements = 11,
                              .keep_gathered = variant & 1,
                              .in_order = variant & 2};
    snprintf(name, sizeof name, "%s, %s, tp=%d, variant %d", b.g.kind, s->name, tp, variant);
    ranks_open(&r, &b.g, &o, tp);
    ranks_agree(&r, name);
    ranks_close(&r);
    graph_test_close(&b);
}

static void test_odd(void **state)
{
    (void)state;
    static const Builder build[] = {build_mlp, build_embed, build_head, build_attention,
                                    build_layer};
    for (size_t u = 0; u < sizeof build / sizeof *build; u++)
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
            for (int tp = 2; tp <= 5; tp++)
                for (int variant = 0; variant < 4; variant++)
                    try_odd(build[u], &odd[i], tp, variant);
}

/* x is needed by columns only at the end, but can be sent at once: before c is made, though ranks
 * with two of the six rows must pack it first, and those with one need not. */
static void build_late(GraphTest *b)
{
    graph_test_open(b, "late");
    Graph *g = &b->g;
    const Value x = graph_test_x(b);
    const Value c = graph_name(g, gelu(g, graph_name(g, gelu(g, x), "p")), "c");
    const Value first = linear(g, c, graph_test_w(b, "w1", D, D), NO_VALUE);
    stream_out(g, add(g, first, linear(g, x, graph_test_w(b, "w2", D, D), NO_VALUE)));
}

static void test_packed_on_some(void **state)
{
    (void)state;
    static const StrategyRow columns[] = {{"w*", "tp", 1, BY_ONE},
                                          {"x", "tp", 0, BY_ONE},
                                          {"p", "tp", 0, BY_ONE},
                                          {"c", "tp", 0, BY_ONE},
                                          {"y", "tp", 0, BY_ONE}};
    const Strategy s = ODD("columns", columns);
    for (int variant = 0; variant < 4; variant++) try_odd(build_late, &s, 4, variant);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_odd),
                                       cmocka_unit_test(test_packed_on_some)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
