/* Patterns of value names, of any length and for any number of names. */
#include "compile/names.h"
#include "support/graph_test.h"

#include <stdio.h>

enum { LONG = 300, NAMES = 150 };

/* A run of stars is one star, whatever its length: the text after it decides. */
static void patterns_have_any_length(void **state)
{
    char pattern[LONG + 32];
    (void)state;
    for (int stars = 1; stars <= LONG; stars++) {
        memset(pattern, '*', (size_t)stars);
        strcpy(pattern + stars, ".act,mid");
        assert_true(names_listed(pattern, "mlp.act"));
        assert_false(names_listed(pattern, "mlp.gate"));
        assert_true(names_listed(pattern, "mid")); /* the next one begins after the comma */
        assert_false(names_listed(pattern, "act,mid"));
        assert_false(names_listed(pattern, ""));
    }
    memset(pattern, 'a', LONG);
    pattern[LONG] = '\0';
    assert_true(names_listed(pattern, pattern));
    assert_false(names_listed(pattern, pattern + 1));
    assert_false(names_listed(NULL, "mid"));
}

/* A unit with more names than a fixed table would hold; the last is found as well as the first. */
static void all_names_are_known(void **state)
{
    GraphTest b;
    char pattern[LONG + 1];
    (void)state;
    graph_test_open(&b, "u");
    Value v = graph_test_x(&b);
    for (int i = 0; i < NAMES; i++) v = graph_name(&b.g, gelu(&b.g, v), "v%d", i);
    stream_out(&b.g, gelu(&b.g, v));
    DO(graph_check(&b.g));
    for (int i = 0; i < NAMES; i++) {
        snprintf(pattern, sizeof pattern, "v0,v%d,*%d", i, i);
        DO(names_check("key", pattern, &b.g, 1, &b.arena));
    }
    expect_error("a name past the last", names_check("key", "v0,v150", &b.g, 1, &b.arena),
                 ERR_CONFIG, "key=v150: matches no value of any unit; did you mean v1");
    memset(pattern, 'x', LONG);
    pattern[LONG] = '\0';
    expect_error("a long one", names_check("key", pattern, &b.g, 1, &b.arena), ERR_CONFIG,
                 "xxx: matches no value of any unit; there are v0, v1");
    assert_non_null(strstr(err_text(), "v149"));
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_have_any_length),
        cmocka_unit_test(all_names_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
