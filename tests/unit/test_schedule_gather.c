/* test_schedule_gather.c -- gathers and drops: complete, never more than `live` at once, and
 * counted correctly. */
#include "pack_test.h"
#include "schedule/gather.h"

enum { MAX_RUNS = 128 };

typedef struct {
    UnitPacks packs[MAX_UNITS];
    PackSwitches row[MAX_UNITS];
    GatherCount count[MAX_UNITS];
    int live;
} Table;

static Schedule gather(Arena *a, const Schedule *s, Table *t)
{
    Schedule out;
    const GatherInput in = {t->row, t->packs, t->live};
    DO(schedule_gathers(s, &in, a, &out, t->count));
    return out;
}

/* Gives each unit its own random legal row. */
static void random_rows(Table *t, int units, const Random *random, uint64_t *draw)
{
    static const PackSwitches row[] = {
        {GATHER_STEP, KEEP_STEP, REDUCE_AFTER_LAST, false, PLACE_DEVICE},
        {GATHER_STEP, KEEP_STEP, REDUCE_AFTER_EACH, true, PLACE_DEVICE},
        {GATHER_USE, KEEP_STEP, REDUCE_AFTER_EACH, true, PLACE_DEVICE},
        {GATHER_USE, KEEP_TO_BACKWARD, REDUCE_AFTER_EACH, true, PLACE_DEVICE},
        {GATHER_USE, KEEP_NO, REDUCE_AFTER_EACH, true, PLACE_DEVICE},
        {GATHER_USE, KEEP_NO, REDUCE_AFTER_LAST, true, PLACE_DEVICE},
    };
    const bool all = random_uniform(random, (*draw)++) < 0.3; /* KEEP_NO everywhere */
    for (int u = 0; u < units; u++)
        t->row[u] = row[all ? 4 : (int)(random_uniform(random, (*draw)++) * 6)];
}

/* The packs of a kind that each RUN of the stage reads, as bits. */
static int reads_of(const Schedule *s, int stage, const Table *t, bool counted, unsigned *reads)
{
    int n = 0;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_RUN) continue;
        const PackSet *set = &t->packs[a->unit].reads[a->phase];
        reads[n] = 0;
        for (int k = 0; k < set->n; k++) {
            const PackSwitches *row = &t->row[set->pack[k]];
            if (row->sharded && (row->keep == KEEP_NO) == counted) reads[n] |= 1u << set->pack[k];
        }
        n++;
    }
    return n;
}

/* The least number of gathers of any choice of at most `live` packs at each RUN: all are tried. */
static int fewest(const unsigned *reads, int n, int live)
{
    enum { SETS = 1 << MAX_UNITS, NEVER = 1 << 20 };
    static int cost[2][SETS];
    for (int set = 0; set < SETS; set++) cost[0][set] = set == 0 ? 0 : NEVER;
    for (int r = 0; r < n; r++) {
        int *from = cost[r % 2], *to = cost[(r + 1) % 2];
        for (unsigned set = 0; set < SETS; set++) {
            to[set] = NEVER;
            if ((reads[r] & ~set) || __builtin_popcount(set) > live) continue;
            for (unsigned old = 0; old < SETS; old++) {
                if (from[old] == NEVER) continue;
                const int c = from[old] + __builtin_popcount(set & ~old);
                if (c < to[set]) to[set] = c;
            }
        }
    }
    int best = NEVER;
    for (int set = 0; set < SETS; set++)
        if (cost[n % 2][set] < best) best = cost[n % 2][set];
    return best;
}

/* Gathered at each RUN: its own reads, then the packs needed next, as many as fit. */
static int count_wanted(const unsigned *reads, int n, int live)
{
    unsigned before = 0;
    int gathers = 0;
    for (int r = 0; r < n; r++) {
        unsigned there = 0;
        for (int i = r; i < n && __builtin_popcount(there) < live; i++)
            for (int p = 0; p < MAX_UNITS && __builtin_popcount(there) < live; p++)
                there |= reads[i] & 1u << p;
        gathers += __builtin_popcount(there & ~before);
        before = there;
    }
    return gathers;
}

static int counted_gathers(const Table *t, int units, int *uses)
{
    int gathers = 0;
    *uses = 0;
    for (int u = 0; u < units; u++) {
        assert_int_equal(t->count[u].saved, t->count[u].uses - t->count[u].gathers);
        if (!t->row[u].sharded) assert_int_equal(t->count[u].uses + t->count[u].gathers, 0);
        if (t->row[u].keep != KEEP_NO) continue;
        gathers += t->count[u].gathers;
        *uses += t->count[u].uses;
    }
    return gathers;
}

/* The counts equal those of the list, and those of the two brute forces. */
static void check_counts(const Schedule *before, const Schedule *s, const Table *t, bool search)
{
    int wanted = 0, least = 0, uses = 0, all = 0, in_list[MAX_UNITS] = {0};
    const int units = schedule_units(s);
    unsigned reads[MAX_RUNS];
    for (int stage = 0; stage < s->stages; stage++) {
        const int n = reads_of(before, stage, t, true, reads);
        wanted += count_wanted(reads, n, t->live);
        if (search) least += fewest(reads, n, t->live);
        for (int i = 0; i < n; i++) all += __builtin_popcount(reads[i]);
        for (int i = 0; i < s->n[stage]; i++)
            if (s->list[stage][i].kind == A_GATHER) in_list[s->list[stage][i].unit]++;
    }
    const int gathers = counted_gathers(t, units, &uses);
    assert_int_equal(gathers, wanted);
    if (search) assert_true(gathers >= least);
    if (search && s->micros == 1 && t->packs[units - 1].adds.n == 1)
        assert_int_equal(gathers, least); /* up and down once: no choice is better */
    assert_int_equal(uses, all);
    for (int u = 0; u < units; u++) assert_int_equal(in_list[u], t->count[u].gathers);
}

/* A pack kept for the step is gathered once and dropped after its last use; one kept to the
 * backward phase is gathered from F on. */
static void check_kept(const Schedule *s, const Table *t)
{
    for (int u = 0; u < schedule_units(s); u++) {
        if (t->row[u].sharded && t->row[u].keep == KEEP_STEP && t->count[u].uses > 0)
            assert_int_equal(t->count[u].gathers, 1);
        if (!t->row[u].sharded || t->row[u].keep != KEEP_TO_BACKWARD) continue;
        int forward = 0; /* micro-batches between F and the last phase that reads */
        for (int i = 0, stage = schedule_stage_of(s, u); i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            if (a->kind == A_DROP && a->unit == u) assert_int_equal(forward, 0);
            if (a->kind != A_RUN || a->unit != u || t->packs[u].reads[PHASE_B].n == 0) continue;
            if (a->phase == PHASE_F) forward++;
            if (a->phase == PHASE_B || a->phase == PHASE_I) forward--;
        }
    }
}

/* A dropped pack is not gathered again before another RUN. */
static void check_no_bounce(const Schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++) {
            if (s->list[stage][i].kind != A_DROP) continue;
            for (int k = i + 1; k < s->n[stage] && s->list[stage][k].kind != A_RUN; k++)
                assert_false(s->list[stage][k].kind == A_GATHER &&
                             s->list[stage][k].unit == s->list[stage][i].unit);
        }
}

static void check_one(Arena *a, Table *t, const Schedule *before, bool search)
{
    const Schedule s = gather(a, before, t);
    const PackRules rules = {t->row, t->packs, t->live, NULL};
    DO(schedule_check(&s, a));
    DO(schedule_check_packs(&s, &rules, a));
    assert_rest_is(&s, before, 1u << A_GATHER | 1u << A_DROP);
    check_counts(before, &s, t, search);
    check_kept(&s, t);
    check_no_bounce(&s);
}

static void all_shapes_and_rows(void **state)
{
    const Random random = random_named(5, "rows");
    uint64_t draw = 0;
    int trial = 0;
    for (int units = 1; units <= 6; units++)
        for (int micros = 1; micros <= 4; micros++)
            for (int live = 1; live <= 4; live++)
                for (int variant = 0; variant < 24; variant++, trial++) {
                    const size_t mark = arena_mark(*state);
                    const int most = units < 3 ? units : 3, stages = 1 + variant / 8 % most;
                    Table t = {.live = live};
                    fill_packs(t.packs, units, variant / 4 % 2 && stages == 1 && live > 1);
                    random_rows(&t, units, &random, &draw);
                    const Schedule s = units_of(*state, variant % 2 ? "gpipe" : "1f1b", stages,
                                                units, micros, variant / 2 % 2);
                    check_one(*state, &t, &s, units <= 4 && micros <= 2 && trial % 7 == 0);
                    arena_rewind(*state, mark);
                }
}

static Schedule drawn(Arena *a, Table *t, int zero, const char *word)
{
    const Schedule s = units_of(a, "1f1b", 1, 4, 1, false);
    for (int u = 0; u < 4; u++) t->row[u] = switches_of_zero(zero, false);
    const Schedule out = gather(a, &s, t);
    assert_drawn(a, "gather.h", word, list_text(a, &out, 0));
    return out;
}

/* The drawings of gather.h, and their counts. */
static void lists_match_drawings(void **state)
{
    Table t = {.live = 2};
    fill_packs(t.packs, 4, false);
    drawn(*state, &t, 1, "zero 1 ");
    for (int u = 0; u < 4; u++) assert_int_equal(t.count[u].gathers, 1);
    drawn(*state, &t, 3, "zero 3 ");
    const int gathers[] = {1, 2, 1, 1}, saved[] = {0, 0, 1, 0};
    for (int u = 0; u < 4; u++) {
        assert_int_equal(t.count[u].gathers, gathers[u]);
        assert_int_equal(t.count[u].saved, saved[u]);
    }
}

/* A receive waits; gathers that can overlap with it start before it. */
static void gathers_do_not_wait_for_receives(void **state)
{
    Table t = {.live = 1};
    fill_packs(t.packs, 3, false);
    for (int u = 0; u < 3; u++) t.row[u] = switches_of_zero(3, false);
    const Schedule s = units_of(*state, "1f1b", 2, 3, 1, false), out = gather(*state, &s, &t);
    assert_string_equal(list_text(*state, &out, 0),
                        "gather.0 F0.0 drop.0 send.F0.0>1 recv.B1.0<1 B0.0 norm update.0");
    assert_string_equal(list_text(*state, &out, 1),
                        "gather.1 recv.F0.0<0 F1.0 drop.1 gather.2 F2.0 drop.2 gather.1 B2.0 B1.0 "
                        "drop.1 send.B1.0>0 norm update.1 update.2");
}

/* Nothing is sharded: nothing is added. */
static void whole_packs_stay(void **state)
{
    Table t = {.live = 1};
    fill_packs(t.packs, 5, true);
    const Schedule s = units_of(*state, "gpipe", 1, 5, 2, false);
    for (int u = 0; u < 5; u++) t.row[u] = switches_of_zero(0, true);
    const Schedule out = gather(*state, &s, &t);
    assert_true(schedule_equal(&s, &out));
}

static void invalid_requests_are_refused(void **state)
{
    Table t = {.live = 1};
    Schedule out;
    const Schedule s = units_of(*state, "1f1b", 1, 3, 1, false);
    const GatherInput in = {t.row, t.packs, 1}, more = {t.row, t.packs, 2};
    fill_packs(t.packs, 3, true);
    for (int u = 0; u < 3; u++) t.row[u] = switches_of_zero(3, false);
    assert_int_equal(schedule_gathers(&s, &in, *state, &out, t.count), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "parallel.live=1: F of unit 2 reads the parameters of 2 "
                                       "units at once; set parallel.live=2 or more"));
    DO(schedule_gathers(&s, &more, *state, &out, t.count));

    const Schedule two = units_of(*state, "1f1b", 2, 3, 1, false);
    assert_int_equal(schedule_gathers(&two, &more, *state, &out, t.count), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "unit 2, on stage 1, holds a parameter of unit 0"));

    t.row[1] = (PackSwitches){GATHER_STEP, KEEP_NO, REDUCE_AFTER_LAST, true, PLACE_DEVICE};
    assert_int_equal(schedule_gathers(&s, &more, *state, &out, t.count), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "pack 1: its parameters are gathered once a step and not"));
}

/* Lists with one change: the check must find it. */
static void faults_are_found(void **state)
{
    static const struct {
        const char *list, *reason;
    } row[] = {
        {"gather.0 gather.1 F0.0 F1.0 drop.0 drop.1 B1.0 B0.0", NULL},
        {"gather.1 F0.0 F1.0 drop.1 B1.0 B0.0", "it reads the parameters of pack 0"},
        {"gather.0 F0.0 F1.0 drop.0 B1.0 B0.0", "it reads the parameters of pack 1"},
        {"gather.0 gather.1 F0.0 drop.0 F1.0 drop.1 B1.0 B0.0",
         "F1.0: it reads the parameters of pack 0"},
        {"gather.0 gather.1 F0.0 F1.0 drop.0 B1.0 B0.0", "drop.1 is missing"},
        {"gather.0 gather.0 gather.1 F0.0 F1.0 drop.0 drop.1 B1.0 B0.0", "it is gathered already"},
        {"gather.0 gather.1 F0.0 F1.0 drop.0 drop.1 drop.1 B1.0 B0.0", "it is not gathered here"},
    };
    Table t = {.live = 2};
    fill_packs(t.packs, 2, true);
    for (int u = 0; u < 2; u++) t.row[u] = switches_of_zero(3, false);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[512];
        Schedule s;
        snprintf(
            text, sizeof text,
            "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\nunits 2\nover units\nstage "
            "0: %s\n",
            row[i].list);
        DO(schedule_parse("test", text, strlen(text), *state, &s));
        const PackRules rules = {t.row, t.packs, 2, NULL}, tight = {t.row, t.packs, 1, NULL};
        const Err err = schedule_check_packs(&s, &rules, *state);
        assert_int_equal(err, row[i].reason ? ERR_CHECK : OK);
        if (row[i].reason && !strstr(err_text(), row[i].reason))
            fail_msg("wanted %s\n got %s", row[i].reason, err_text());
        if (row[i].reason) continue;
        assert_int_equal(schedule_check_packs(&s, &tight, *state), ERR_CHECK);
        assert_non_null(strstr(err_text(), "2 units are gathered at once; allowed are 1"));
        t.row[0].sharded = false;
        assert_int_equal(schedule_check_packs(&s, &rules, *state), ERR_CHECK);
        assert_non_null(strstr(err_text(), "gather.0: its parameters are not sharded"));
        t.row[0].sharded = true;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_do_not_wait_for_receives),
        cmocka_unit_test(all_shapes_and_rows),
        cmocka_unit_test(lists_match_drawings),
        cmocka_unit_test(whole_packs_stay),
        cmocka_unit_test(invalid_requests_are_refused),
        cmocka_unit_test(faults_are_found),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
