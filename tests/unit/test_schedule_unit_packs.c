/* test_schedule_unit_packs.c -- units with several packs: actions name packs, `live` counts units,
 * and the text form states the packs of each unit. */
#include "pack_test.h"

#include "schedule/gather.h"
#include "schedule/reduce.h"

/* Unit 1 has packs 1 and 2, unit 2 has none: its parameters are in pack 0. */
enum { UNITS = 4, PACKS = 4 };
static const int16_t first_pack[UNITS + 1] = {0, 1, 3, 3, 4};

static Schedule make(Arena *a, int micros)
{
    Schedule s, out;
    const int16_t first_unit[] = {0, UNITS};
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 1, .micros = micros}, a, &s));
    s.first_unit = first_unit;
    s.first_pack = first_pack;
    DO(schedule_expand(&s, EXPAND_STEP, a, &out));
    DO(schedule_check(&out, a));
    return out;
}

static void fill(UnitPacks *packs)
{
    static const int reads[UNITS][2] = {{0, 0}, {1, 2}, {0, 0}, {3, 3}};
    memset(packs, 0, UNITS * sizeof *packs);
    for (int u = 0; u < UNITS; u++)
        for (int i = 0; i < 2; i++) {
            DO(packs_add(&packs[u].adds, reads[u][i]));
            DO(packs_add(&packs[u].reads[PHASE_F], reads[u][i]));
            if (u == 1) DO(packs_add(&packs[u].reads[PHASE_B], reads[u][i]));
        }
}

static void actions_name_packs(void **state)
{
    UnitPacks packs[UNITS];
    PackSwitches row[PACKS];
    GatherCount count[PACKS];
    const int group[PACKS] = {1, 1, 1, 1};
    int sums[UNITS];
    Schedule s = make(*state, 1), reduced, out;
    fill(packs);
    for (int p = 0; p < PACKS; p++) row[p] = switches_of_zero(3, true);
    row[2] = switches_of_zero(0, false);
    DO(schedule_reduces(&s, &(ReduceInput){packs, group, NULL, NULL}, *state, &reduced, sums));
    DO(schedule_gathers(&reduced, &(GatherInput){row, packs, 1}, *state, &out, count));
    assert_string_equal(list_text(*state, &out, 0),
                        "gather.0 F0.0 drop.0 gather.1 F1.0 drop.1 gather.0 F2.0 drop.0 gather.3 "
                        "F3.0 drop.3 reduce.3 gather.1 B3.0 B2.0 B1.0 drop.1 reduce.1 reduce.2 "
                        "B0.0 reduce.0 norm update.0 update.1 update.2 update.3");
    DO(schedule_check(&out, *state));
    DO(schedule_check_packs(&out, &(PackRules){row, packs, 1, group}, *state));
}

/* Two packs of one unit take one place. */
static void live_counts_units(void **state)
{
    UnitPacks packs[UNITS];
    PackSwitches row[PACKS];
    GatherCount count[PACKS];
    const Schedule s = make(*state, 2);
    Schedule out;
    fill(packs);
    for (int p = 0; p < PACKS; p++) row[p] = switches_of_zero(3, false);
    DO(schedule_gathers(&s, &(GatherInput){row, packs, 1}, *state, &out, count));
    DO(schedule_check_packs(&out, &(PackRules){row, packs, 1, NULL}, *state));
    assert_int_equal(count[1].gathers, count[2].gathers);
    assert_true(count[1].gathers > 0);
    DO(packs_add(&packs[1].reads[PHASE_F], 3)); /* of another unit */
    assert_int_equal(schedule_gathers(&s, &(GatherInput){row, packs, 1}, *state, &out, count),
                     ERR_CONFIG);
    assert_non_null(strstr(err_text(), "reads the parameters of 2 units at once"));
}

static void text_has_packs(void **state)
{
    const Schedule s = make(*state, 2);
    Schedule again;
    const char *text;
    DO(schedule_print(&s, *state, &text));
    assert_non_null(strstr(text, "\nunits 4\npacks 1 2 0 1\nover units\n"));
    DO(schedule_parse("test", text, strlen(text), *state, &again));
    assert_true(schedule_equal(&s, &again));
    const char *bad = "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\nunits 2\n"
                      "packs 1 2\nover units\nstage 0: F0.0 F1.0 gather.3\n";
    assert_int_equal(schedule_parse("test", bad, strlen(bad), *state, &again), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "pack 3 is not there; allowed are 0 to 2"));
    bad = "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\npacks 2\nover chunks\n"
          "stage 0: F0.0\n";
    assert_int_equal(schedule_parse("test", bad, strlen(bad), *state, &again), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "the line `packs` is for lists over units"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(actions_name_packs, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(live_counts_units, open_arena, close_arena),
        cmocka_unit_test_setup_teardown(text_has_packs, open_arena, close_arena)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
