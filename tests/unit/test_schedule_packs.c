/* test_schedule_packs.c -- the packs that compiled programs read and add to, for every family. */
#include "pack_test.h"
#include "support/jobs.h"

static int layers_of(const Model *m) { return m->n_units - 2; }

static void assert_set(const PackSet *set, int n, int first, int second)
{
    assert_int_equal(set->n, n);
    if (n > 0) assert_int_equal(set->pack[0], first);
    if (n > 1) assert_int_equal(set->pack[1], second);
}

/* As in the table of packs.h: embed, layers, head; tied or not, whole or split backward. */
static void check_model(Arena *a, const TestModel *model, const Job *job)
{
    const UnitPacks *packs;
    const Model *m = &job->model;
    const int head = m->n_units - 1;
    const bool tied = model->config.tied;
    DO(packs_of_model(m, &job->programs, a, &packs));
    assert_set(&packs[0].reads[PHASE_F], 1, 0, 0);
    assert_set(&packs[0].reads[PHASE_B], 0, 0, 0);
    assert_set(&packs[0].adds, 1, 0, 0);
    for (int u = 1; u <= layers_of(m); u++)
        for (int phase = 0; phase < N_PHASES; phase++)
            if (phase != PHASE_W) assert_set(&packs[u].reads[phase], 1, u, 0);
    assert_set(&packs[head].reads[PHASE_F], 1 + tied, tied ? 0 : head, head);
    assert_set(&packs[head].adds, 1 + tied, tied ? 0 : head, head);
}

static void packs_match_the_table(void **state)
{
    for (const TestModel *model = test_models; model->name; model++) {
        const size_t mark = arena_mark(*state);
        Job job;
        const JobSettings set = test_job_settings(model->name, JOB_STEP);
        DO(job_compile(&set, *state, &job));
        check_model(*state, model, &job);
        arena_rewind(*state, mark);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_match_the_table),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
