/* test_model_flops.c -- the flops that mfu counts of a mixture of experts: those of K rows for each
 * token, on any mesh, whatever room there is for rows. */
#include <math.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "train/loop.h"
#include "ir/pairs.h"

enum { DP = 4, EXPERTS = 8, CHOSEN = 3, EXPERT_WIDTH = 5, MICROS = 2 };

static ModelConfig mixture(double capacity)
{
    ModelConfig c = *test_model("qwen2_moe");
    c.experts.n = EXPERTS;
    c.experts.chosen = CHOSEN;
    c.experts.width = EXPERT_WIDTH;
    c.experts.shared_width = 0;
    c.experts.capacity = capacity;
    return c;
}

static JobSettings settings(const ModelConfig *c)
{
    JobSettings set = test_job_settings("qwen2_moe", JOB_STEP);
    set.config = c;
    set.micros = MICROS;
    return set;
}

/* Of all ranks. */
static double flops_of(const JobSettings *given)
{
    const MeshSizes *m = &given->parallel.mesh;
    const int dp = m->dp_shard > 1 ? m->dp_shard : 1, tp = m->tp > 1 ? m->tp : 1;
    double flops = 0;
    for (int rank = 0; rank < dp * tp; rank++) {
        static Job job;
        Arena arena;
        JobSettings set = *given;
        set.parallel.rank = rank;
        DO(arena_open(&arena, "job", ARENA_PLENTY));
        DO(job_compile(&set, &arena, &job));
        flops += job_model_flops(&job);
        arena_close(&arena);
    }
    return flops;
}

static void expect_flops(const char *what, double got, double want)
{
    if (fabs(got - want) > 1e-9 * want) fail_msg("%s: %.0f flops, not %.0f", what, got, want);
}

/* Experts of twice the width have twice the flops, and all else is alike. */
static void rows_of_tokens(void **state)
{
    const ModelConfig c = mixture(0);
    ModelConfig wide = c;
    JobSettings set = settings(&c);
    const double sparse = (double)(c.experts.sparse_step > 1 ? c.n_layers / 2 : c.n_layers);
    (void)state;
    wide.experts.width *= 2;
    const double one = flops_of(&set);
    set.config = &wide;
    expect_flops("three GEMMs, three times", flops_of(&set) - one,
                 sparse * 3 * 6.0 * MICROS * TEST_T * CHOSEN * EXPERT_WIDTH * (double)c.width);
}

static void rooms_do_not_count(void **state)
{
    static const struct {
        const char *what;
        double rows;
        bool rounds;
        int tp, ep, etp;
    } table[] = {{"room for all", 0, false, 1, 4, 1},   {"three shares", 3, false, 1, 4, 1},
                 {"one share", 1, false, 1, 2, 1},      {"rounds", 0.5, true, 1, 4, 1},
                 {"two ranks each", 2, false, 1, 2, 2}, {"along tp", 2, false, 2, 8, 1}};
    const ModelConfig c = mixture(0);
    JobSettings one = settings(&c);
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        JobSettings set = settings(&c);
        set.parallel.mesh.dp_shard = DP;
        one.parallel.mesh = set.parallel.mesh;
        set.parallel.mesh.tp = table[i].tp;
        set.parallel.mesh.ep = table[i].ep;
        set.parallel.mesh.etp = table[i].etp;
        set.parallel.expert_rows = table[i].rows;
        set.parallel.rounds = table[i].rounds;
        expect_flops(table[i].what, flops_of(&set), flops_of(&one));
    }
}

/* A capacity below 1 drops rows of balanced routing, one above does not. */
static void dropped_rows_do_not_count(void **state)
{
    const ModelConfig all = mixture(0), half = mixture(0.5), most = mixture(1.5);
    ModelConfig wide = all, half_wide = half;
    JobSettings set = settings(&all);
    (void)state;
    wide.experts.width = half_wide.experts.width = 2 * EXPERT_WIDTH;
    const double whole = flops_of(&set);
    set.config = &wide;
    const double more = flops_of(&set) - whole;
    set.config = &most;
    expect_flops("capacity 1.5", flops_of(&set), whole);
    set.config = &half;
    const double less = flops_of(&set);
    set.config = &half_wide;
    expect_flops("capacity 0.5", flops_of(&set) - less, more / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_tokens),
                                       cmocka_unit_test(rooms_do_not_count),
                                       cmocka_unit_test(dropped_rows_do_not_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
