/* A copy between spaces may be done as late as its wait. Until then its source is not written over
 * and its destination is not used for anything else, whatever is computed between begin and wait.
 *
 *     a = gelu x;  c = begin copy a;  ... other nodes ...;  wait c        a lives up to here
 *
 * Each body runs with copies that are done only when they are waited for and memory that is
 * poisoned when it begins to live, and gives the bits of the body without the copies. */
#include "support/expect.h"
#include "support/tiny.h"

enum { T = 7, D = 10 };

/* What is computed meanwhile needs bytes of its own, as many as `a` has. */
static Value others(Graph *g, Value x)
{
    Value sum = gelu(g, scale(g, x, 0.7));
    for (int i = 0; i < 3; i++) sum = gelu(g, gelu(g, sum));
    return sum;
}

/* Only the copy reads a: where it ended with the begin, the others would get its bytes. */
static Value source(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), out = copies ? copy_out(g, a) : a;
    const Value b = others(g, x);
    return add(g, copies ? wait_for(g, copy_in(g, wait_for(g, out))) : a, b);
}

/* scale may write over what it reads last, but here the copy has yet to read it. */
static Value source_in_place(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), out = copies ? copy_out(g, a) : a;
    const Value b = scale(g, a, -1.3);
    return add(g, copies ? wait_for(g, copy_in(g, wait_for(g, out))) : a, b);
}

/* The same, the other way: the bytes that come back are not there before the wait, nor may they be
 * anyone else's. */
static Value destination(Graph *g, Value x, bool copies)
{
    const Value a = gelu(g, x), home = copies ? wait_for(g, copy_out(g, a)) : a;
    const Value begun = copies ? copy_in(g, home) : a;
    const Value b = others(g, x);
    return add(g, b, copies ? wait_for(g, begun) : a);
}

/* Two at once, waited for in the other order. */
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

/* Between begin and wait of the program's copies there is a node that computes; else the bodies
 * above would show nothing. */
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
