/* test_schedule_check.c -- each fault is a good schedule with one change; the checker must name the
 * change and the reason. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "schedule/check/check.h"
#include "schedule/text_form.h"

/* Over chunks, not expanded; chunks 0 and 2 are on stage 0. */
static const char plain[] = "sheaf schedule 2\n"
                            "chunks 3 micros 2 slices 1\n"
                            "stages 0 1 0\n"
                            "over chunks\n"
                            "stage 0: F0.0 F0.1 F2.0 B2.0 F2.1 I2.1 W2.1 B0.0 B0.1\n"
                            "stage 1: F1.0 F1.1 B1.0 I1.1 W1.1\n";

/* Over units, with every kind of action; unit 2 is the head. */
static const char full[] =
    "sheaf schedule 2\n"
    "chunks 2 micros 2 slices 1\n"
    "stages 0 1\n"
    "units 2 1\n"
    "over units\n"
    "stage 0: bind.0 bind.1 gather.0 F0.0 F1.0 send.F1.0>1 F0.1 F1.1 send.F1.1>1 evict.0.1>host\n"
    "stage 0: recv.B2.0<1 B1.0 B0.0 recv.I2.1<1 B1.1 fetch.0.1<host B0.1 drop.0\n"
    "stage 0: reduce.0 reduce.1.0 reduce.1.1 norm update.0 update.1\n"
    "stage 1: bind.0 recv.F1.0<0 F2.0 B2.0 send.B2.0>0 recv.F1.1<0 F2.1 reduce.2 I2.1 send.I2.1>0\n"
    "stage 1: W2.1 norm update.2\n";

/* Three stages in a row, for peers that exist and are wrong. */
static const char three[] =
    "sheaf schedule 2\n"
    "chunks 3 micros 2 slices 1\n"
    "stages 0 1 2\n"
    "over units\n"
    "stage 0: F0.0 send.F0.0>1 F0.1 send.F0.1>1 recv.B1.0<1 B0.0 recv.B1.1<1 B0.1\n"
    "stage 1: recv.F0.0<0 F1.0 send.F1.0>2 recv.F0.1<0 F1.1 send.F1.1>2\n"
    "stage 1: recv.B2.0<2 B1.0 send.B1.0>0 recv.B2.1<2 B1.1 send.B1.1>0\n"
    "stage 2: recv.F1.0<1 F2.0 recv.F1.1<1 B2.0 send.B2.0>1 F2.1 B2.1 send.B2.1>1\n";

/* Units on two stages without sends: valid over chunks, where sends are added later. */
static const char silent[] = "sheaf schedule 2\n"
                             "chunks 2 micros 1 slices 1\n"
                             "stages 0 1\n"
                             "over chunks\n"
                             "stage 0: F0.0 B0.0\n"
                             "stage 1: F1.0 B1.0\n";

static const char sliced[] =
    "sheaf schedule 2\n"
    "chunks 1 micros 2 slices 2\n"
    "stages 0\n"
    "over chunks\n"
    "stage 0: F0.0.0 F0.0.1 B0.0.1 B0.0.0 F0.1.0 F0.1.1 I0.1.1 I0.1.0 W0.1.0 W0.1.1\n";

typedef struct {
    const char *name, *good, *find, *replace, *reason;
} Fault;

static const Fault faults[] = {
    {"no F", plain, "F0.1 ", "", "stage 0: F0.1 is missing"},
    {"no backward", plain, " B1.0", "",
     "stage 1: B1.0 is missing: each item runs B once, or I and W"},
    {"I without W", plain, " W1.1", "", "stage 1: W1.1 is missing: I and W come together"},
    {"W without I", plain, "I1.1 ", "", "stage 1: I1.1 is missing: I and W come together"},
    {"B and I", plain, "I1.1 W1.1", "B1.1 I1.1",
     "position 4, I1.1: runs in addition to B, at position 3"},
    {"B and W", plain, "I1.1 W1.1", "B1.1 W1.1", "W1.1: runs in addition to B"},
    {"F twice", plain, "F0.1 ", "F0.1 F0.0 ", "position 2, F0.0: runs twice, first at position 0"},
    {"B twice", plain, "B0.1", "B0.1 B0.1", "position 9, B0.1: runs twice"},
    {"another's chunk", plain, "stage 1: F1.0", "stage 1: F2.0 F1.0",
     "stage 1, position 0, F2.0: chunk 2 is held by stage 0"},
    {"B before F", plain, "F1.0 F1.1 B1.0", "B1.0 F1.0 F1.1",
     "stage 1, position 0, B1.0: comes before its F, at position 1"},
    {"I before F", plain, "F2.1 I2.1", "I2.1 F2.1", "I2.1: comes before its F"},
    {"W before I", plain, "I2.1 W2.1", "W2.1 I2.1",
     "position 5, W2.1: comes before its I, at position 6"},
    {"a circle through F and B", plain, "F1.0 F1.1 B1.0", "F1.1 F1.0 B1.0", NULL}, /* valid */
    {"a circle", plain, "F0.0 F0.1 F2.0", "F0.0 F2.0 F0.1", NULL},                 /* valid too */
    {"a circle of two stages", plain,
     "stage 0: F0.0 F0.1 F2.0 B2.0 F2.1 I2.1 W2.1 B0.0 B0.1\nstage 1: F1.0 F1.1",
     "stage 0: F0.0 F2.0 B2.0 F0.1 F2.1 I2.1 W2.1 B0.0 B0.1\nstage 1: F1.1 F1.0",
     "deadlock: stage 0, position 1, F2.0: waits for F1.0; stage 1, position 0, F1.1: waits "
     "for F0.1"},
    {"chunks of one stage out of order", plain, "stage 0: F0.0 F0.1 F2.0 B2.0",
     "stage 0: F2.0 F0.0 F0.1 B2.0", "deadlock: stage 0, position 0, F2.0: waits for F1.0"},
    {"backward too early", plain, "F2.0 B2.0 F2.1 I2.1 W2.1 B0.0", "B0.0 F2.0 B2.0 F2.1 I2.1 W2.1",
     "position 2, B0.0: waits for B1.0, or its I"},

    {"units without sends", silent, "over chunks", "over units", "stage 0: send.F0.0>1 is missing"},

    {"F of a later slice first", sliced, "F0.0.0 F0.0.1", "F0.0.1 F0.0.0",
     "position 0, F0.0.1: comes before F of slice 0, which it reads"},
    {"B of an earlier slice first", sliced, "B0.0.1 B0.0.0", "B0.0.0 B0.0.1",
     "position 2, B0.0.0: comes before the backward of slice 1"},
    {"I of an earlier slice first", sliced, "I0.1.1 I0.1.0", "I0.1.0 I0.1.1",
     "position 6, I0.1.0: comes before the backward of slice 1"},

    {"no send", three, "send.F1.1>2", "",
     "stage 1: send.F1.1>2 is missing: stage 2 reads the value"},
    {"no recv", three, "recv.F1.1<1", "",
     "stage 2: recv.F1.1<1 is missing: it is sent, at position 5 of stage 1"},
    {"no backward recv", three, "recv.B1.0<1", "", "stage 0: recv.B1.0<1 is missing"},
    {"sent to the wrong stage", three, "send.F1.1>2", "send.F1.1>0", "the reader is on stage 2"},
    {"sent to itself", three, "send.F1.1>2", "send.F1.1>1", "its peer is its own stage"},
    {"received from the wrong stage", three, "recv.B2.0<2", "recv.B2.0<0",
     "unit 2 is held by stage 2"},
    {"received by the wrong stage", three, "stage 0: F0.0", "stage 0: recv.B2.0<2 F0.0",
     "stage 0, position 0, recv.B2.0<2: the reader is on stage 1"},
    {"sent before it is made", three, "F1.1 send.F1.1>2", "send.F1.1>2 F1.1",
     "stage 1, position 4, send.F1.1>2: sent before it is made, at position 5"},
    {"received after it is read", three, "recv.B2.0<2 B1.0", "B1.0 recv.B2.0<2",
     "position 7, recv.B2.0<2: received after it is read, at position 6"},
    {"a forward received after it is read", three, "recv.F0.1<0 F1.1", "F1.1 recv.F0.1<0",
     "stage 1, position 4, recv.F0.1<0: received after it is read, at position 3"},
    {"sent twice", three, "send.F1.0>2", "send.F1.0>2 send.F1.0>2",
     "sent twice, first at position 2"},
    {"received twice", three, "recv.F1.0<1", "recv.F1.0<1 recv.F1.0<1", "received twice"},
    {"sent in a phase that does not run", three, "send.B2.1>1", "send.I2.1>1",
     "stage 2 runs no such phase"},
    {"the last forward is sent", three, "F2.0 recv", "F2.0 send.F2.0>1 recv",
     "no item reads this value"},
    {"a pair in two orders", three, "recv.F1.0<1 F2.0 recv.F1.1<1", "recv.F1.1<1 recv.F1.0<1 F2.0",
     "stage 2, position 1, recv.F1.0<1: stage 1 sends it, at position 2, before"},
    {"a circle of receives", three, "F0.1 send.F0.1>1 recv.B1.0<1 B0.0",
     "recv.B1.0<1 B0.0 F0.1 send.F0.1>1", "deadlock"},
    {"a value that stays on its stage", full, "F1.0 send.F1.0>1", "send.F0.0>1 F1.0 send.F1.0>1",
     "the reader is on stage 0 as well: nothing to send"},

    {"runs before the gather", full, "gather.0 F0.0", "F0.0 gather.0",
     "stage 0, position 2, F0.0: its parameters are not gathered here"},
    {"runs after the drop", full, "F0.1 F1.1", "drop.0 F0.1 F1.1",
     "F0.1: its parameters are not gathered here"},
    {"updated while gathered", full, " drop.0", "", "update.0: updated while it is gathered"},
    {"gathered twice", full, "gather.0 F0.0", "gather.0 gather.0 F0.0", "it is gathered already"},
    {"dropped twice", full, "drop.0", "drop.0 drop.0", "it is not gathered here"},
    {"dropped, never gathered", full, "drop.0", "drop.0 drop.1", "drop.1: it is not gathered here"},
    {"reduced too early", full, "B1.1 fetch.0.1<host B0.1 drop.0\nstage 0: reduce.0",
     "B1.1 fetch.0.1<host reduce.0 B0.1 drop.0\nstage 0:",
     "RUNs that still write its gradients: 1"},
    {"the head reduced too early", full, "F2.1 reduce.2", "reduce.2 F2.1",
     "stage 1, position 6, reduce.2: RUNs that still write its gradients: 1"},
    {"a micro-batch reduced too early", full, "recv.B2.0<1 B1.0 B0.0",
     "recv.B2.0<1 reduce.1.0 B1.0 B0.0", "reduce.1.0: RUNs that still write its gradients: 1"},
    {"reduced twice", full, "reduce.0", "reduce.0 reduce.0", "reduce.0: reduced twice"},
    {"both micro-batches reduced at once", full, "reduce.1.0 reduce.1.1", "reduce.1.1", NULL},
    {"reduced before the second of a group", full, "B1.1 fetch", "reduce.1.1 B1.1 fetch",
     "reduce.1.1: RUNs that still write its gradients: 1"},
    {"in the wrong order", full, "reduce.1.0 reduce.1.1", "reduce.1.1 reduce.1.0",
     "reduce.1.0: reduced twice"},
    {"a micro-batch reduced twice", full, "reduce.1.1", "reduce.1.0 reduce.1.1", "reduced twice"},
    {"reduced by micro-batch and by step", full, "reduce.1.1", "reduce.1.1 reduce.1",
     "reduced as a sum and by micro-batch"},
    {"one micro-batch not reduced", full, "reduce.1.1 ", "",
     "only 1 of 2 micro-batches are reduced"},
    {"reduced after the norm", full, "reduce.0 reduce.1.0 reduce.1.1 norm",
     "reduce.1.0 reduce.1.1 norm reduce.0", "reduced after the norm"},
    {"two norms", full, "W2.1 norm", "W2.1 norm norm", "a second norm"},
    {"runs after the norm", full, "W2.1 norm", "norm W2.1", "W2.1: runs after the norm"},
    {"one stage without a norm", full, "W2.1 norm", "W2.1",
     "stage 1: norm is missing: stage 0 has one"},
    {"a norm on one stage only", full, "reduce.1.1 norm", "reduce.1.1",
     "stage 0: norm is missing: stage 1 has one"},
    {"updated twice", full, "update.1", "update.1 update.0", "update.0: updated twice"},
    {"updated before the norm", full, "norm update.0", "update.0 norm", "updated before the norm"},
    {"updated before its last RUN", full, "W2.1 norm update.2", "update.2 W2.1 norm",
     "update.2: RUNs of it that come after: 1"},
    {"another's unit updated", full, "update.1", "update.2", "unit 2 is held by stage 1"},
    {"evicted before F", full, "gather.0 F0.0", "gather.0 evict.0.0>host F0.0",
     "there is no frame before F"},
    {"evicted after B", full, "drop.0", "drop.0 evict.0.0>host",
     "there is no frame after position"},
    {"evicted twice", full, "evict.0.1>host", "evict.0.1>host evict.0.1>host",
     "its frame is evicted already"},
    {"never fetched", full, "fetch.0.1<host ", "", "B0.1: its frame was evicted and not fetched"},
    {"fetched, never evicted", full, "evict.0.1>host", "",
     "fetch.0.1<host: its frame was not evicted"},
    {"fetched from elsewhere", full, "fetch.0.1<host", "fetch.0.1<1", "its frame went to -1"},
    {"bound twice", full, "bind.0 bind.1", "bind.0 bind.1 bind.0",
     "bind.0: the slot is bound twice"},
    {"bound after a RUN", full, "F2.0 B2.0", "F2.0 bind.3 B2.0", "bind.3: bound after a RUN"},
};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

static Schedule parse(Arena *a, const char *name, const char *text)
{
    Schedule s;
    if (schedule_parse(name, text, strlen(text), a, &s) != OK) fail_msg("%s", err_text());
    return s;
}

static void good_schedules_pass(void **state)
{
    const char *const good[] = {plain, full, three, sliced, silent};
    for (int i = 0; i < 5; i++) {
        const Schedule s = parse(*state, "good", good[i]);
        if (schedule_check(&s, *state) != OK) fail_msg("schedule %d: %s", i, err_text());
        assert_true(schedule_in_order(&s));
    }
}

static void check_fault(Arena *a, const Fault *f)
{
    char text[2048];
    const char *at = strstr(f->good, f->find);
    if (!at) fail_msg("fault '%s': the good schedule has no '%s'", f->name, f->find);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - f->good), f->good, f->replace,
             at + strlen(f->find));
    const Schedule s = parse(a, f->name, text);
    const size_t mark = arena_mark(a);
    const Err err = schedule_check(&s, a);
    assert_int_equal(arena_mark(a), mark);
    if (!f->reason) {
        if (err != OK) fail_msg("'%s' is allowed, but: %s", f->name, err_text());
        return;
    }
    if (err != ERR_CHECK) fail_msg("fault '%s' passed", f->name);
    if (!strstr(err_text(), f->reason))
        fail_msg("fault '%s'\n  wanted: %s\n  got:    %s", f->name, f->reason, err_text());
}

static void each_fault_is_named(void **state)
{
    for (int i = 0; i < N_FAULTS; i++) check_fault(*state, &faults[i]);
}

/* Updates without a norm: a reduction may then come too late. */
static void update_needs_its_reduction(void **state)
{
    const char head[] =
        "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\nunits 2\nover units\n";
    const char *const lists[] = {
        "stage 0: F0.0 F1.0 B1.0 B0.0 reduce.0 update.0 reduce.1.0 update.1\n",
        "stage 0: F0.0 F1.0 B1.0 B0.0 update.0 reduce.0\n",
        "stage 0: F0.0 F1.0 B1.0 B0.0 update.1 reduce.1.0\n",
        "stage 0: F0.0 F1.0 update.1 B1.0 B0.0\n"};
    const char *const reason[] = {NULL, "updated before its gradients are reduced",
                                  "updated before its gradients are reduced",
                                  "RUNs of it that come after"};
    for (int i = 0; i < 4; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", head, lists[i]);
        const Schedule s = parse(*state, "updates", text);
        const Err err = schedule_check(&s, *state);
        assert_int_equal(err, reason[i] ? ERR_CHECK : OK);
        if (reason[i]) assert_non_null(strstr(err_text(), reason[i]));
    }
}

/* Values that the parser would refuse. */
static void impossible_values_are_refused(void **state)
{
    const struct {
        Action action;
        const char *reason;
    } row[] = {
        {{N_ACTION_KINDS, 0, 0, 0, 0, -1}, "no such kind"},
        {{A_RUN, N_PHASES, 0, 0, 0, -1}, "no such kind or phase"},
        {{A_RUN, PHASE_F, 3, 0, 0, -1}, "chunk 3; allowed are 0 to 2"},
        {{A_RUN, PHASE_F, -1, 0, 0, -1}, "chunk -1; allowed are 0 to 2"},
        {{A_RUN, PHASE_F, 0, 2, 0, -1}, "micro-batch 2; allowed are 0 to 1"},
        {{A_RUN, PHASE_F, 0, 0, 1, -1}, "slice 1; allowed are 0 to 0"},
        {{A_SEND, PHASE_F, 0, 0, 0, -1}, "peer -1; allowed are 0 to 1"},
        {{A_SEND, PHASE_W, 0, 0, 0, 1}, "W makes no value"},
        {{A_REDUCE, PHASE_F, 0, 2, 0, -1}, "micro-batch 2; allowed"},
        {{A_EVICT, PHASE_F, 0, 0, 0, 2}, "peer 2; allowed are 0 to 1"},
        {{A_GATHER, PHASE_F, 3, -1, 0, -1}, "chunk 3; allowed are 0 to 2"},
        {{A_BIND, PHASE_F, -1, -1, 0, -1}, "slot -1"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const Schedule s = parse(*state, "plain", plain);
        s.list[0][1] = row[i].action;
        assert_int_equal(schedule_check(&s, *state), ERR_CHECK);
        if (!strstr(err_text(), row[i].reason))
            fail_msg("wanted: %s\n got: %s", row[i].reason, err_text());
    }
}

static void impossible_shapes_are_refused(void **state)
{
    const int16_t out_of_range[] = {0, 2, 0}, hollow[] = {0, 1, 1, 2};
    Schedule s = parse(*state, "plain", plain);
    s.stage_of = out_of_range;
    assert_int_equal(schedule_check(&s, *state), ERR_CHECK);
    assert_non_null(strstr(err_text(), "chunk 1 is on stage 2; allowed are 0 to 1"));
    s = parse(*state, "plain", plain);
    s.first_unit = hollow;
    assert_int_equal(schedule_check(&s, *state), ERR_CHECK);
    assert_non_null(strstr(err_text(), "chunk 1 has units 1 to 0"));
    s = parse(*state, "plain", plain);
    s.micros = 0;
    assert_int_equal(schedule_check(&s, *state), ERR_CHECK);
    assert_non_null(strstr(err_text(), "micros is 0; allowed are 1 to 32767"));
    s = parse(*state, "plain", plain);
    s.micros = s.slices =
        32767; /* three billion cells: refused at once, without a table for them */
    assert_int_equal(schedule_check(&s, *state), ERR_CHECK);
    assert_non_null(
        strstr(err_text(), "3221028867 (item, micro-batch, slice) to run, only 14 actions"));
}

static void order_of_gradients_is_seen(void **state)
{
    const struct {
        const char *units, *list;
        bool in_order;
    } row[] = {
        {"over chunks\n", "F0.0 F0.1 B0.0 B0.1", true},
        {"over chunks\n", "F0.0 F0.1 B0.1 B0.0", false},
        {"over chunks\n", "F0.1 F0.0 B0.0 B0.1", false}, /* the chunk contains the head */
        {"over chunks\n", "F0.0 F0.1 I0.1 I0.0 W0.0 W0.1", true},
        {"over chunks\n", "F0.0 F0.1 I0.0 I0.1 W0.1 W0.0", false},
        {"units 2\nover units\n", "F0.0 F1.0 F0.1 F1.1 B1.1 B1.0 B0.0 B0.1", true},
        {"units 2\nover units\n", "F0.0 F0.1 F1.1 F1.0 B1.0 B0.0 B1.1 B0.1", false},
        {"units 2\nover units\n", "F0.1 F0.0 F1.0 F1.1 B1.0 B0.0 B1.1 B0.1", true},
        {"units 2\nover units\n", "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.1 B0.0", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "sheaf schedule 2\nchunks 1 micros 2 slices 1\nstages 0\n%sstage 0: %s",
                 row[i].units, row[i].list);
        const Schedule s = parse(*state, "order", text);
        if (schedule_check(&s, *state) != OK) fail_msg("row %zu: %s", i, err_text());
        if (schedule_in_order(&s) != row[i].in_order) fail_msg("row %zu: %s", i, row[i].list);
    }
    const Schedule s = parse(*state, "order",
                             "sheaf schedule 2\nchunks 2 micros 3 slices 1\nstages 0 1\n"
                             "over chunks\nstage 0: F0.0 F0.1 F0.2 B0.0 I0.2 I0.1 W0.2 W0.1\n"
                             "stage 1: F1.0 F1.1 F1.2 B1.0 I1.2 I1.1 W1.1 W1.2\n");
    assert_int_equal(schedule_check(&s, *state), OK);
    assert_int_equal(schedule_check_order(&s), ERR_CHECK);
    assert_string_equal(err_text(),
                        "schedule: stage 0, position 7, W0.1: adds to the gradients of chunk 0 "
                        "after micro-batch 2: the sum is not that of one rank, bit for bit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_schedules_pass),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(update_needs_its_reduction),
        cmocka_unit_test(impossible_values_are_refused),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(order_of_gradients_is_seen),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
