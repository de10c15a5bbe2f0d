/* test_schedule_reduce.c -- reductions: after all RUNs that they sum, before everything else, once
 * for each group of micro-batches. */
#include "pack_test.h"
#include "schedule/gather.h"
#include "schedule/reduce.h"

typedef struct {
    UnitPacks packs[MAX_UNITS];
    int group[MAX_UNITS], sums[MAX_UNITS];
} Table;

static Schedule reduce(Arena *a, const Schedule *s, Table *t)
{
    Schedule out;
    DO(schedule_reduces(s, &(ReduceInput){t->packs, t->group, NULL, NULL}, a, &out, t->sums));
    return out;
}

/* The position of the last RUN that adds to the pack, of micro-batches first .. end - 1; or -1. */
static int last_adding(const Schedule *s, const Table *t, int pack, int first, int end)
{
    const int stage = schedule_stage_of(s, pack);
    int last = -1;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind == A_RUN && schedule_writes(s, a) && a->micro >= first && a->micro < end &&
            packs_has(&t->packs[a->unit].adds, pack))
            last = i;
    }
    return last;
}

static int place_of(const Schedule *s, int pack, int micro)
{
    const int stage = schedule_stage_of(s, pack);
    int at = -1;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_REDUCE || a->unit != pack || a->micro != micro) continue;
        assert_int_equal(at, -1); /* once */
        at = i;
    }
    return at;
}

/* Each group's REDUCE is after the last RUN that adds to it, with only REDUCEs between. */
static int check_pack(const Schedule *s, const Table *t, int pack, int holders)
{
    const int group = t->group[pack] ? t->group[pack] : s->micros,
              stage = schedule_stage_of(s, pack);
    int n = 0;
    if (t->group[pack] == 0 && holders == 1) return 0;
    for (int first = 0; first < s->micros; first += group, n++) {
        const int end = first + group < s->micros ? first + group : s->micros;
        const int at = place_of(s, pack, group >= s->micros ? -1 : end - 1);
        const int last = last_adding(s, t, pack, first, end);
        assert_true(at > last && last >= 0);
        for (int i = last + 1; i < at; i++) assert_int_equal(s->list[stage][i].kind, A_REDUCE);
    }
    return n;
}

/* From the list: the most groups of a unit's gradients that are begun and not reduced. */
static int max_waiting(const Schedule *s, const Table *t, int unit, int pack, int holders)
{
    const int stage = schedule_stage_of(s, unit),
              group = t->group[pack] ? t->group[pack] : s->micros;
    bool begun[8] = {false}, ended[8] = {false};
    int most = 1;
    if (t->group[pack] == 0 && holders == 1) return 1;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind == A_RUN && a->unit == unit && schedule_writes(s, a))
            begun[a->micro / group] = true;
        if (a->kind == A_REDUCE && a->unit == pack)
            ended[a->micro < 0 ? 0 : a->micro / group] = true;
        int waiting = 0;
        for (int g = 0; g < 8; g++) waiting += begun[g] && !ended[g];
        if (most < waiting) most = waiting;
    }
    return most;
}

static void check_one(Arena *a, Table *t, const Schedule *before, bool tied)
{
    const Schedule s = reduce(a, before, t);
    const int units = schedule_units(&s);
    PackSwitches row[MAX_UNITS] = {{0}};
    int n = 0, in_list = 0;
    DO(schedule_check(&s, a));
    DO(schedule_check_packs(&s, &(PackRules){row, t->packs, 1, t->group}, a));
    assert_rest_is(&s, before, 1u << A_REDUCE);
    for (int u = 0; u < units; u++) {
        n += check_pack(&s, t, u, tied && u == 0 ? 2 : 1);
        int sums = max_waiting(&s, t, u, u, tied && u == 0 ? 2 : 1);
        if (tied && u == units - 1) {
            const int other = max_waiting(&s, t, u, 0, 2);
            if (sums < other) sums = other;
        }
        assert_int_equal(t->sums[u], sums);
    }
    for (int stage = 0; stage < s.stages; stage++)
        for (int i = 0; i < s.n[stage]; i++) in_list += s.list[stage][i].kind == A_REDUCE;
    assert_int_equal(in_list, n);
}

static void all_shapes_and_groups(void **state)
{
    const Random random = random_named(7, "groups");
    uint64_t draw = 0;
    for (int units = 1; units <= 6; units++)
        for (int micros = 1; micros <= 6; micros++)
            for (int variant = 0; variant < 48; variant++) {
                const size_t mark = arena_mark(*state);
                const int most = units < 3 ? units : 3, stages = 1 + variant / 8 % most;
                const bool tied = variant / 4 % 2 && stages == 1 && units > 1;
                Table t = {0};
                fill_packs(t.packs, units, tied);
                for (int u = 0; u < units; u++)
                    t.group[u] = (int)(random_uniform(&random, draw++) * (micros + 1));
                const Schedule s = units_of(*state, variant % 2 ? "gpipe" : "1f1b", stages, units,
                                            micros, variant / 2 % 2);
                check_one(*state, &t, &s, tied);
                arena_rewind(*state, mark);
            }
}

/* The drawings of reduce.h. */
static void lists_match_drawings(void **state)
{
    Table t = {0};
    Schedule s = units_of(*state, "1f1b", 1, 2, 2, false);
    s.n[0] -= 3; /* norm and updates are not drawn */
    fill_packs(t.packs, 2, false);
    t.group[0] = t.group[1] = 2;
    Schedule out = reduce(*state, &s, &t);
    assert_drawn(*state, "reduce.h", "last ", list_text(*state, &out, 0));
    t.group[0] = t.group[1] = 1;
    out = reduce(*state, &s, &t);
    assert_drawn(*state, "reduce.h", "each ", list_text(*state, &out, 0));
}

/* A tied head adds in its forwards. In gpipe all of them run first, so that many sums wait. */
static void sums_of_a_tied_head_wait(void **state)
{
    Table t = {.group = {1, 1, 1}};
    fill_packs(t.packs, 3, true);
    const Schedule s = units_of(*state, "gpipe", 1, 3, 4, false);
    reduce(*state, &s, &t);
    assert_int_equal(t.sums[0], 1);
    assert_int_equal(t.sums[2], 4);
    const Schedule f = units_of(*state, "1f1b", 1, 3, 4, false);
    const Schedule out = reduce(*state, &f, &t);
    assert_int_equal(t.sums[2], 1);
    assert_non_null(strstr(list_text(*state, &out, 0), "B0.1 reduce.0.1 F0.2"));

    t.group[0] = t.group[1] = t.group[2] =
        0; /* one rank: only parameters of two units are reduced */
    const Schedule one = reduce(*state, &f, &t);
    assert_non_null(strstr(list_text(*state, &one, 0), "B0.3 reduce.0 norm"));
    assert_int_equal(one.n[0], f.n[0] + 1);
    const PackSwitches row[3] = {{0}};
    const PackRules rules = {row, t.packs, 1, t.group};
    DO(schedule_check_packs(&one, &rules, *state));
    assert_int_equal(schedule_check_packs(&f, &rules, *state), ERR_CHECK);
    assert_non_null(strstr(err_text(), "reduce.0 is missing: 0 of 4"));
}

/* Two layers share a parameter, and the one whose pack holds it is not the last to add. */
static void the_last_holder_counts(void **state)
{
    static const char text[] =
        "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\nunits 4\nover units\n"
        "stage 0: F0.0 F1.0 F2.0 F3.0 B3.0 I2.0 I1.0 W1.0 W2.0 B0.0\n";
    Table t = {.group = {1, 1, 1, 1}};
    Schedule s;
    fill_packs(t.packs, 4, false);
    DO(packs_add(&t.packs[2].adds, 1));
    DO(schedule_parse("test", text, sizeof text - 1, *state, &s));
    const Schedule out = reduce(*state, &s, &t);
    assert_string_equal(list_text(*state, &out, 0),
                        "F0.0 F1.0 F2.0 F3.0 reduce.3 B3.0 I2.0 I1.0 W1.0 W2.0 reduce.1 reduce.2 "
                        "B0.0 reduce.0");
}

/* Gathers and reductions together, in either order. */
static void both_passes_together(void **state)
{
    enum { UNITS = 5, MICROS = 3, LIVE = 2 };
    Table t = {0};
    PackSwitches row[UNITS];
    GatherCount count[UNITS];
    Schedule a, b, c;
    fill_packs(t.packs, UNITS, true);
    for (int u = 0; u < UNITS; u++) {
        row[u] = switches_of_zero(u % 4, u % 2);
        t.group[u] = switches_group(row[u], MICROS);
    }
    const Schedule s = units_of(*state, "1f1b", 1, UNITS, MICROS, false);
    const GatherInput in = {row, t.packs, LIVE};
    const PackRules rules = {row, t.packs, LIVE, t.group};
    DO(schedule_gathers(&s, &in, *state, &a, count));
    b = reduce(*state, &a, &t);
    DO(schedule_check(&b, *state));
    DO(schedule_check_packs(&b, &rules, *state));
    a = reduce(*state, &s, &t);
    DO(schedule_gathers(&a, &in, *state, &c, count));
    DO(schedule_check(&c, *state));
    DO(schedule_check_packs(&c, &rules, *state));
    assert_int_equal(b.n[0], c.n[0]);
}

static void invalid_requests_are_refused(void **state)
{
    Table t = {.group = {1, 3}};
    Schedule s = units_of(*state, "gpipe", 1, 2, 2, false), out;
    const ReduceInput in = {t.packs, t.group, NULL, NULL};
    fill_packs(t.packs, 2, false);
    assert_int_equal(schedule_reduces(&s, &in, *state, &out, t.sums), ERR_CHECK);
    assert_non_null(strstr(err_text(), "pack 1: reduced after 3 micro-batches; there are 2"));
    t.group[1] = 2;
    const Action swap = s.list[0][5]; /* B0.0 and B0.1 */
    s.list[0][5] = s.list[0][7];
    s.list[0][7] = swap;
    assert_int_equal(schedule_reduces(&s, &in, *state, &out, t.sums), ERR_CHECK);
    assert_non_null(strstr(err_text(), "does not run micro-batches in order"));
    t.group[0] = 2;
    DO(schedule_reduces(&s, &in, *state, &out, t.sums));
}

/* Lists with one change. */
static void faults_are_found(void **state)
{
    static const struct {
        const char *list, *reason;
    } row[] = {
        {"F0.0 F1.0 reduce.1.0 B1.0 B0.0 reduce.0.0 F0.1 F1.1 reduce.1.1 B1.1 B0.1 reduce.0.1",
         NULL},
        {"F0.0 F1.0 reduce.1.0 reduce.0.0 B1.0 B0.0 F0.1 F1.1 reduce.1.1 B1.1 B0.1 reduce.0.1",
         "reduce.0.0: RUNs, of all units that hold its parameters, that still add to its "
         "gradients: 1"},
        {"F0.0 F1.0 reduce.1.0 B1.0 B0.0 reduce.0.0 F0.1 F1.1 reduce.1.1 B1.1 B0.1",
         "reduce.0 is missing: 1 of 2 micro-batches are reduced; 2 units hold"},
        {"F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1 reduce.0", "reduce.1 is missing: 0 of 2"},
        {"F0.0 F0.1 F1.0 B1.0 B0.0 B0.1 reduce.0 F1.1 reduce.1 B1.1", /* tied: F1.1 adds to 0 */
         "reduce.0: RUNs, of all units that hold its parameters, that still add to its gradients: "
         "1"},
    };
    Table t = {.group = {1, 1}};
    PackSwitches none[2] = {{0}};
    fill_packs(t.packs, 2, true);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[512];
        Schedule s;
        snprintf(
            text, sizeof text,
            "sheaf schedule 2\nchunks 1 micros 2 slices 1\nstages 0\nunits 2\nover units\nstage "
            "0: %s\n",
            row[i].list);
        DO(schedule_parse("test", text, strlen(text), *state, &s));
        const Err err = schedule_check_packs(&s, &(PackRules){none, t.packs, 1, t.group}, *state);
        assert_int_equal(err, row[i].reason ? ERR_CHECK : OK);
        if (row[i].reason && !strstr(err_text(), row[i].reason))
            fail_msg("wanted %s\n got %s", row[i].reason, err_text());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_holder_counts), cmocka_unit_test(all_shapes_and_groups),
        cmocka_unit_test(lists_match_drawings),   cmocka_unit_test(sums_of_a_tied_head_wait),
        cmocka_unit_test(both_passes_together),   cmocka_unit_test(invalid_requests_are_refused),
        cmocka_unit_test(faults_are_found),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
