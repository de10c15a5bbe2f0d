/* Strategies that nobody would ask for: some weights cut and others not, the stream cut across, pins
 * in the middle. Values then go from cut to cut, and what is not sent as it is stored is packed. All
 * ranks compile, and their transfers meet, though only some of them pack. */
#include "place_units.h"

static void try_odd(Builder build, const Strategy *s, int tp, int way)
{
    Bed b;
    Ranks r;
    char name[96];
    build(&b);
    DO(graph_err(&b.g));
    const CompileOptions o = {.backward = true,
                              .strategy = s,
                              .chunk_elements = 11,
                              .keep_gathered = way & 1,
                              .in_order = way & 2};
    snprintf(name, sizeof name, "%s, %s, tp=%d, way %d", b.g.kind, s->name, tp, way);
    ranks_open(&r, &b.g, &o, tp);
    ranks_agree(&r, name);
    ranks_close(&r);
    bed_close(&b);
}

static void test_odd(void **state)
{
    (void)state;
    static const Builder build[] = {build_mlp, build_embed, build_head, build_attention,
                                    build_layer};
    for (size_t u = 0; u < sizeof build / sizeof *build; u++)
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
            for (int tp = 2; tp <= 5; tp++)
                for (int way = 0; way < 4; way++) try_odd(build[u], &odd[i], tp, way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_odd)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
