/* test_ranks_capture.c -- steps of a rank on a device as graphs: when a graph is made, launched and
 * dropped; the reasons for none; numbers equal to those of `ref` to the bit. The device is the
 * shadow of `ref` (support/shadow.h), whose graphs keep the numbers that calls had at the
 * capture. */
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

/* Checks results against `ref`, at every pace, and the counts of captures and launches. */
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

/* One step op by op, then one graph for all others: AdamW, SGD, bf16, and copies in other
 * queues. */
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
    p.alternating = true;
    expect_counts("short in every second step", p, 0, 0);
}

/* A bad step: in a graph only the device detects it. */
static void skipped(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.bad = 5;
    expect_counts("infinite loss", p, 1, CAPTURE_STEPS - 1);
}

/* Two ranks of one context, each with its own graph. */
static void validated(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.validates = true;
    expect_counts("validated", p, 2, 2 * (CAPTURE_STEPS - 1));
}

static void invalidate_before_4(int step)
{
    if (step == 4) shadow_invalidate_graphs();
}

static void tune_until_3(int step) { shadow_set_candidates(step <= 3); }

/* A device without optimizer lists captures only programs without updates, here the validation.
 * Autotuning is absent in both cases. */
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

/* A graph is dropped when the device invalidates it, and none is made during autotuning. */
static void not_settled(void **state)
{
    (void)state;
    ModelConfig config;
    CapturePlan p = plan_of(0, &config);
    p.before = invalidate_before_4;
    expect_counts("invalidated", p, 2, 6);
    p.before = tune_until_3;
    expect_counts("tuning", p, 1, CAPTURE_STEPS - 3);
}

/* A refusal at any op: this step and all later ones run op by op. */
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
        shadow_refuse_capture_at(at);
        DO(captures_run(&p, &got));
        captures_same("refused", &want, &got);
        assert_int_equal(got.captured + got.launched, 0);
        assert_non_null(strstr(got.refused, "a library cannot be captured"));
        assert_int_equal(shadow_count().graphs, 0);
        captures_close(&got);
    }
    shadow_refuse_capture_at(-1);
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

static void expect_reason(const RankSettings *s, const char *part)
{
    char text[UNCAPTURED_BYTES];
    const char *why = rank_uncaptured(s, text);
    if (!part && why) fail_msg("it is not captured: %s", why);
    if (part && (!why || !strstr(why, part)))
        fail_msg("the reason is \"%s\", not \"%s\"", why ? why : "", part);
}

/* rank_uncaptured gives the reason before a rank is opened. */
static void reasons_of_settings(void **state)
{
    (void)state;
    Compiled c;
    RankTrace trace = {0};
    const JobSettings one = test_job_settings("gpt2", JOB_STEP);
    RankSettings s = {
        .program = compiled(&c, one), .device = &device_shadow, .capture = true, .trace = &trace};
    expect_reason(&s, NULL);
    trace.cap = 1;
    expect_reason(&s, "a trace");
    s.trace = NULL;
    s.jitter.max_s = 1e-3;
    expect_reason(&s, "sleeps");
    s.jitter.max_s = 0;
    s.capture = false;
    expect_reason(&s, "run.capture=off");
    s.capture = true;
    s.device = &device_ref;
    expect_reason(&s, "is the host");
    DeviceRuntime runtime;
    Device limited = shadow_without(false, true, false, &runtime);
    s.device = &limited;
    expect_reason(&s, "no graphs");
    limited = shadow_without(true, false, false, &runtime);
    expect_reason(&s, "no optimizer lists");
    arena_close(&c.arena);
    for (int row = 0; row < n_device_rows; row++) {
        ModelConfig config;
        const World w = device_world(&device_rows[row], &device_shadow, &config);
        const RankSettings of = {
            .program = compiled(&c, w.set), .device = &device_shadow, .capture = true};
        expect_reason(&of, row < ALONE ? NULL : "would not: ");
        if (strcmp(device_rows[row].name, "tp") == 0)
            expect_reason(&of, "not: instruction 1, all_reduce, of F0.0 (embed)");
        if (strcmp(device_rows[row].name, "dp zero0") == 0) expect_reason(&of, "not: reduce.");
        if (strcmp(device_rows[row].name, "dp zero3") == 0) expect_reason(&of, "not: gather.0");
        if (strcmp(device_rows[row].name, "pp 1f1b") == 0) expect_reason(&of, "not: send.F");
        arena_close(&c.arena);
    }
}

/* With NCCL between processes, collectives are captured and sends are not. */
static void reasons_of_transfers(void **state)
{
    (void)state;
    int captured = 0;
    for (int row = ALONE; row < n_device_rows; row++) {
        const DeviceRow *of = &device_rows[row];
        ModelConfig config;
        Compiled c;
        char text[UNCAPTURED_BYTES];
        const World w = device_world(of, &device_shadow, &config);
        const RankSettings s = {.program = compiled(&c, w.set),
                                .device = &device_shadow,
                                .capture = true,
                                .capture_transfers = true};
        const bool collective = of->context == CONTEXT_GATHER || of->context == CONTEXT_ULYSSES ||
                                of->cp_heads || of->clips; /* which also rings use for clips */
        const bool sends = of->pp > 1 || of->stream || (of->cp > 1 && !collective);
        if (of->rounds)
            expect_reason(&s, "the host reads how many rounds");
        else if (sends)
            expect_reason(&s, "the other rank of a send: ");
        else if (of->cp <= 1 && of->pp <= 1)
            expect_reason(&s, NULL);
        captured += !rank_uncaptured(&s, text);
        arena_close(&c.arena);
    }
    assert_true(captured >= 10);
}

/* Calls of a session; a list with BIND; a list that updates before its norm. */
static void reasons_of_list(void **state)
{
    (void)state;
    Compiled c;
    JobSettings set = test_job_settings("gpt2", JOB_STEP);
    RankSettings s = {.program = compiled(&c, set), .device = &device_shadow, .capture = true};
    LinkedAction *list = c.job.linked.list;
    const int last = c.job.linked.n - 1;
    int norm = 0;
    while (list[norm].action.kind != A_NORM) norm++;
    const int update = norm + 1;
    const Action was = list[norm].action;
    assert_int_equal(list[update].action.kind, A_UPDATE);
    list[norm].action = list[update].action;
    expect_reason(&s, "before its norm");
    list[norm].action = was;
    list[last].action.kind = A_BIND;
    expect_reason(&s, "bound");
    arena_close(&c.arena);
    set = test_job_settings("gpt2", JOB_GENERATE);
    set.session = (SessionShape){.rows = 4, .logit_rows = 2, .sequences = 2, .context = 12};
    s.program = compiled(&c, set);
    expect_reason(&s, "session");
    arena_close(&c.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_alike),
                                       cmocka_unit_test(other_rows),
                                       cmocka_unit_test(skipped),
                                       cmocka_unit_test(validated),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(reasons_of_settings),
                                       cmocka_unit_test(reasons_of_transfers),
                                       cmocka_unit_test(not_settled),
                                       cmocka_unit_test(reasons_of_list),
                                       cmocka_unit_test(optional_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
