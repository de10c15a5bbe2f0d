/* test_late_copies.c -- a copy between host and device may complete as late as its wait. Until
 * then its source is not overwritten and its destination is not used for other values, whatever
 * runs between begin and wait.
 *
 *     a = gelu x;  c = begin copy a;  ... other nodes ...;  wait c        a lives up to here
 *
 * Each body runs with copies that complete only at their wait, and with memory that is poisoned
 * when a lifetime begins. It gives the bits of the body without copies. */
#include "support/expect.h"
#include "support/tiny.h"

enum { T = 7, D = 10 };

/* Nodes between begin and wait, which need as many bytes as `a` has. */
static Value others(Graph *g, Value x)
{
    Value sum = gelu(g, scale(g, x, 0.7));
    for (int i = 0; i < 3; i++) sum = gelu(g, gelu(g, sum));
    return sum;
}

/* Only the copy reads a. If a's lifetime ended at the begin, the other nodes would get its
 * bytes. */
static Value source(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), out = copies ? copy_out(g, a) : a;
    const Value b = others(g, x);
    return add(g, copies ? wait_for(g, copy_in(g, wait_for(g, out))) : a, b);
}

/* scale may overwrite its input at the last read, but here the copy still reads it. */
static Value source_in_place(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), out = copies ? copy_out(g, a) : a;
    const Value b = scale(g, a, -1.3);
    return add(g, copies ? wait_for(g, copy_in(g, wait_for(g, out))) : a, b);
}

/* The destination: its bytes arrive only at the wait and must not belong to another value
 * before. */
static Value destination(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), home = copies ? wait_for(g, copy_out(g, a)) : a;
    const Value begun = copies ? copy_in(g, home) : a;
    const Value b = others(g, x);
    return add(g, b, copies ? wait_for(g, begun) : a);
}

/* Two copies in flight, waited for in the reverse order. */
static Value crossed(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), b = scale(g, x, 0.4);
    const Value a_out = copies ? copy_out(g, a) : a, b_out = copies ? copy_out(g, b) : b;
    const Value c = others(g, x);
    const Value b_home = copies ? wait_for(g, b_out) : b;
    const Value d = gelu(g, c);
    const Value a_home = copies ? wait_for(g, a_out) : a;
    const Value a_begun = copies ? copy_in(g, a_home) : a,
                b_begun = copies ? copy_in(g, b_home) : b;
    const Value e = gelu(g, d);
    const Value sum = add(g, e, copies ? wait_for(g, b_begun) : b);
    return add(g, sum, copies ? wait_for(g, a_begun) : a);
}

#define BODY(name)                                                                                 \
    static Value name##_with(Graph *g, Dim rows, Value x)                                          \
    {                                                                                              \
        (void)rows;                                                                                \
        return name(g, x, true);                                                                   \
    }                                                                                              \
    static Value name##_without(Graph *g, Dim rows, Value x)                                       \
    {                                                                                              \
        (void)rows;                                                                                \
        return name(g, x, false);                                                                  \
    }
BODY(source)
BODY(source_in_place)
BODY(destination)
BODY(crossed)

static double loss_of(TinyBody body)
{
    const TinySpec spec = {
        .body = body, .bodies = 2, .dtype = F64, .rows = T, .width = D, .micros = 2};
    StepResult result;
    Tiny t;
    DO(tiny_open(&t, &spec));
    assert_true(t.rank.settings.late && t.rank.settings.poison);
    DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 0}, &result));
    tiny_close(&t);
    return result.loss_sum;
}

static void late_copies_change_nothing(void **state)
{
    static const struct {
        const char *name;
        TinyBody with, without;
    } body[] = {{"source", source_with, source_without},
                {"source in place", source_in_place_with, source_in_place_without},
                {"destination", destination_with, destination_without},
                {"crossed", crossed_with, crossed_without}};
    (void)state;
    for (size_t i = 0; i < sizeof body / sizeof *body; i++) {
        const double with = loss_of(body[i].with), without = loss_of(body[i].without);
        if (!(with == without))
            fail_msg("%s: %.17g with copies, %.17g without", body[i].name, with, without);
    }
}

/* Checks that a computing node is between begin and wait of the program's copies; otherwise the
 * bodies above test nothing. */
static void copies_overlap_compute(void **state)
{
    const TinySpec spec = {.body = source_with, .dtype = F64, .rows = T, .width = D, .micros = 1};
    Tiny t;
    int begun = -1, between = 0;
    (void)state;
    DO(tiny_open(&t, &spec));
    const Program *p = &t.program[1];
    for (int i = p->first[PHASE_F]; i < p->first[PHASE_F + 1]; i++) {
        if (p->instr[i].op == OP_copy_out) begun = i;
        if (p->instr[i].op == OP_wait && p->instr[i].in[0] == p->instr[begun].out[0])
            between = i - begun - 1;
    }
    assert_true(begun >= 0 && between >= 4);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_copies_change_nothing),
        cmocka_unit_test(copies_overlap_compute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
