/* Steps of a rank on a device as graphs: when one is made, launched and dropped, who is refused one and
 * why; and numbers that are those of `ref`, which knows no graphs, to the bit. The device is a shadow
 * of `ref` (support/shadow.h), whose graphs keep the numbers that calls had when they were captured. */
#include "support/expect.h"

#include "support/captures.h"
#include "support/device_rows.h"
#include "support/shadow.h"

enum { ALONE = 4 }; /* rows of device_rows that are one rank */

static CapturePlan plan_of(int row, ModelConfig *config)
{
    const World w = device_world(&device_rows[row], &device_ref, config);
    return (CapturePlan){.set = w.set, .device = &device_ref};
}

/* As on `ref`, whatever the pace; so often captured, so many steps launched. */
static void expect_counts(const char *name, CapturePlan p, int captured, int launched)
{
    CaptureResult want, got;
    DO(captures_run(&p, &want));
    if (p.bad) assert_true(want.skipped[p.bad - 1]);
    p.device = &device_shadow;
    p.capture = true;
    for (int pace = SHADOW_COIN; pace <= SHADOW_LATEST; pace++) {
        shadow_set(7, (ShadowPace)pace);
        if (captures_run(&p, &got) != OK) fail_msg("%s: %s", name, err_text());
        captures_same(name, &want, &got);
        if (got.captured != captured || got.launched != launched)
            fail_msg("%s: %d captured, %d launched; should be %d, %d", name, (int)got.captured,
                     (int)got.launched, captured, launched);
        const ShadowCount count = shadow_count();
        assert_true(count.graphs == 0 && count.contexts == 0 && count.bytes == 0);
        captures_close(&got);
    }
    captures_close(&want);
}

/* One step op by op, then a graph for all: AdamW, SGD, bf16, and copies in other queues. */
static void all_alike(void **state)
{
    (void)state;
    for (int row = 0; row < ALONE; row++) {
        ModelConfig config;
        CapturePlan p = plan_of(row, &config);
        p.reads = 5;
        expect_counts(device_rows[row].name, p, 1, CAPTURE_STEPS - 1);
    }
}

static void other_rows(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.short_from = 4; /* 1 walks, 2 and 3 are launched, 4 walks, 5 to 8 are launched */
    expect_counts("short from step 4", p, 2, 6);
    p.short_from = 8;
    expect_counts("short at the end", p, 1, 6);
    p.short_from = 0;
    p.in_turns = true;
    expect_counts("short in every second step", p, 0, 0);
}

/* The device alone learns that it is one. */
static void skipped(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.bad = 5;
    expect_counts("infinite loss", p, 1, CAPTURE_STEPS - 1);
}

/* Two ranks of one context, each with a graph of its own. */
static void validated(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.validates = true;
    expect_counts("validated", p, 2, 2 * (CAPTURE_STEPS - 1));
}

static void move_before_4(int step)
{
    if (step == 4) shadow_moves();
}

static void choose_until_3(int step) { shadow_opens(step <= 3); }

/* A device without optimizer lists captures only lists without updates: here the validation's. One
 * without autotuning captures as ever. */
static void optional_tables(void **state)
{
    (void)state;
    for (int lists = 0; lists < 2; lists++) {
        ModelConfig config;
        DeviceRuntime runtime;
        CaptureResult want, got;
        const Device limited = shadow_without(lists, false, true, &runtime);
        CapturePlan p = plan_of(0, &config);
        p.validates = true;
        DO(captures_run(&p, &want));
        p.device = &limited;
        p.capture = true;
        shadow_set(9, SHADOW_COIN);
        DO(captures_run(&p, &got));
        captures_same("optional tables", &want, &got);
        assert_int_equal(got.captured, lists ? 1 : 2);
        captures_close(&got);
        captures_close(&want);
    }
}

/* What the device keeps for kernels has moved; products have several algorithms left. */
static void not_settled(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.before = move_before_4;
    expect_counts("moved", p, 2, 6);
    p.before = choose_until_3;
    expect_counts("choosing", p, 1, CAPTURE_STEPS - 3);
}

/* At its start or at any op: the step runs op by op, with all that come after it. */
static void refused(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(3, &config);
    CaptureResult want, got;
    DO(captures_run(&p, &want));
    p.device = &device_shadow;
    p.capture = true;
    for (int at = 0; at < 60; at++) {
        shadow_refuses(at);
        DO(captures_run(&p, &got));
        captures_same("refused", &want, &got);
        assert_int_equal(got.captured + got.launched, 0);
        assert_non_null(strstr(got.refused, "a library cannot be captured"));
        assert_int_equal(shadow_count().graphs, 0);
        captures_close(&got);
    }
    shadow_refuses(-1);
    captures_close(&want);
}

typedef struct {
    Arena arena;
    Job job;
} Compiled;

static const LinkedProgram *compiled(Compiled *c, JobSettings set)
{
    DO(arena_open(&c->arena, "capture", ARENA_PLENTY));
    DO(job_compile(&set, &c->arena, &c->job));
    return &c->job.linked;
}

static void says(const RankSettings *s, const char *part)
{
    const char *why = rank_uncaptured(s);
    if (!part && why) fail_msg("it is not captured: %s", why);
    if (part && (!why || !strstr(why, part)))
        fail_msg("it says \"%s\"; it should say \"%s\"", why ? why : "", part);
}

/* Who is captured is known before a rank is opened. */
static void who(void **state)
{
    (void)state;
    Compiled c;
    RankTrace trace = {0};
    const JobSettings one = test_job_settings("gpt2", JOB_STEP);
    RankSettings s = {
        .program = compiled(&c, one), .device = &device_shadow, .capture = true, .trace = &trace};
    says(&s, NULL);
    trace.cap = 1;
    says(&s, "a trace");
    s.trace = NULL;
    s.jitter.max_s = 1e-3;
    says(&s, "sleeps");
    s.jitter.max_s = 0;
    s.capture = false;
    says(&s, "run.capture=off");
    s.capture = true;
    s.device = &device_ref;
    says(&s, "is the host");
    DeviceRuntime runtime;
    Device limited = shadow_without(false, true, false, &runtime);
    s.device = &limited;
    says(&s, "no graphs");
    limited = shadow_without(true, false, false, &runtime);
    says(&s, "no optimizer lists");
    arena_close(&c.arena);
    for (int row = 0; row < n_device_rows; row++) {
        ModelConfig config;
        const World w = device_world(&device_rows[row], &device_shadow, &config);
        const RankSettings of = {
            .program = compiled(&c, w.set), .device = &device_shadow, .capture = true};
        says(&of, row < ALONE ? NULL : "synchronize through the host");
        arena_close(&c.arena);
    }
}

/* A session's calls, a list that binds, one that updates before its norm. */
static void whose_list(void **state)
{
    (void)state;
    Compiled c;
    JobSettings set = test_job_settings("gpt2", JOB_STEP);
    RankSettings s = {.program = compiled(&c, set), .device = &device_shadow, .capture = true};
    Linked *list = c.job.linked.list;
    const int last = c.job.linked.n - 1;
    int norm = 0;
    while (list[norm].action.kind != A_NORM) norm++;
    const int update = norm + 1;
    const Action was = list[norm].action;
    assert_int_equal(list[update].action.kind, A_UPDATE);
    list[norm].action = list[update].action;
    says(&s, "before its norm");
    list[norm].action = was;
    list[last].action.kind = A_BIND;
    says(&s, "bound");
    arena_close(&c.arena);
    set = test_job_settings("gpt2", JOB_GENERATE);
    set.session = (SessionShape){.rows = 4, .asked = 2, .sequences = 2, .context = 12};
    s.program = compiled(&c, set);
    says(&s, "session");
    arena_close(&c.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_alike),      cmocka_unit_test(other_rows),
        cmocka_unit_test(skipped),        cmocka_unit_test(validated),
        cmocka_unit_test(refused),        cmocka_unit_test(who),
        cmocka_unit_test(not_settled),    cmocka_unit_test(whose_list),
        cmocka_unit_test(optional_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
