/* test_plan_bound.c -- bounds of random plans: none is above the coarse clock's time, nor above the
 * bytes of linked programs. */
#include "plan_spaces.h"

#include "plan/search/parts.h"
#include "plan/simulate.h"

static void is_at_most(const char *what, const PlanPoint *p, double bound, double value, Arena *a)
{
    const char *words;
    Text t = text_in(a);
    if (bound <= value * (1 + 1e-12)) return;
    plan_point_text(p, &t);
    DO(text_done(&t, &words));
    fail_msg("%s of %s: the bound %.12g is above %.12g", what, words, bound, value);
}

/* Each level of a node is a bound of the next. Returns false for a plan that is refused. */
static bool check_point(SmallSpace *t, const PlanPoint *p)
{
    LayoutBound ideal, scaled;
    PlanBound from_flops, from_one, from_units;
    CoarseTime played, timed;
    double bytes;
    Err err = plan_time(&t->s, p, &timed);
    if (err == OK) err = plan_link(&t->s, p, &bytes);
    if (err != OK) {
        if (err != ERR_CONFIG) fail_msg("%s", err_text()); /* refused is fine, a fault is not */
        return false;
    }
    DO(cache_ideal(&t->s, p, &ideal));
    DO(search_bound(&t->s, p, &ideal, &from_flops));
    DO(cache_scaled(&t->s, p, &scaled));
    DO(search_bound(&t->s, p, &scaled, &from_one));
    DO(plan_point_bound(&t->s, p, &from_units));
    DO(plan_play(&t->s, p, &played));
    is_at_most("ideal", p, from_flops.step_s, from_units.step_s, &t->temp);
    is_at_most("scaled", p, from_one.step_s, from_units.step_s, &t->temp);
    is_at_most("bound", p, from_units.step_s, played.step_s, &t->temp);
    is_at_most("played", p, played.step_s, timed.step_s, &t->temp);
    assert_true(from_units.step_s > 0.2 * timed.step_s); /* it is a bound of some use */
    is_at_most("memory before a compilation", p, from_flops.memory_bytes, bytes, &t->temp);
    is_at_most("memory", p, from_units.memory_bytes, bytes, &t->temp);
    is_at_most("memory of the coarse clock", p,
               (double)timed.peak_bytes / search_peak_error(&t->s, p), bytes, &t->temp);
    return true;
}

/* Memory of the cluster that the rank that needs most takes, of all ranks of the mesh. */
static double simulated_bytes(SmallSpace *t, const PlanPoint *p)
{
    const JobSettings job = plan_job(&t->s.space, p);
    const size_t mark = arena_mark(&t->arena);
    Simulation all;
    Mesh mesh;
    double most = 0;
    DO(mesh_sized(&job.parallel.mesh, &mesh));
    const SimulateInput in = {.job = &job, .mesh = &mesh, .save = t->s.save};
    DO(simulate(&in, &t->arena, &t->temp, &all));
    for (int i = 0; i < all.n; i++) {
        const double bytes = (double)rank_count_bytes(&all.class[i].count, t->cluster.host_memory);
        if (bytes > most) most = bytes;
    }
    arena_rewind(&t->arena, mark);
    return most;
}

/* A point of the space; every third has weights with a ZeRO level of their own. Of those with tp
 * many have layouts of weights along it that a search found, or other ones. */
static PlanPoint random_point(SmallSpace *t, uint64_t *seed)
{
    static const char *const rules[] = {"self_attn.*=3", "mlp.*=1", "mlp.down_proj.*=2"};
    static const char *const layouts[] = {"*down_proj.*=outputs", "*_proj.*=inputs",
                                          "*embed_tokens.*=inputs,*_proj.*=whole"};
    PlanPoint p = t->s.node[next_random(seed) % (uint64_t)t->s.n].point;
    const uint64_t rule = next_random(seed) % 9;
    bool differs;
    if (rule < 3 && plan_dp(&p) > 1) p.zero_weights = rules[rule];
    if (p.mesh.tp > 1 && !p.tp_search && rule % 2) p.tp_weights = layouts[rule % 3];
    DO(plan_settle(&t->s, &p, &differs));
    return p;
}

/* The memory of a plan is that of all its ranks, to the byte. */
static void memory_is_exact(void **state)
{
    uint64_t seed = 11;
    int checked = 0, laid_out = 0;
    (void)state;
    for (int n = 0; n < 20; n++) {
        PlanFixed fixed = plan_fixed_none();
        SmallSpace t;
        fixed.recompute = n % 3;
        fixed.micro = 1 + n % 2;
        open_small(&t, n, &fixed);
        for (int i = 0; i < 12; i++) {
            const PlanPoint p = random_point(&t, &seed);
            double bytes;
            if (plan_link(&t.s, &p, &bytes) != OK) continue;
            const double all = simulated_bytes(&t, &p);
            checked++;
            laid_out += p.tp_weights != NULL;
            if (all != bytes)
                fail_msg("space %d: linked %.0f bytes, all ranks %.0f", n, bytes, all);
        }
        close_small(&t);
    }
    assert_true(checked >= 200 && laid_out >= 20);
}

static void random_plans(void **state)
{
    const PlanFixed none = plan_fixed_none();
    uint64_t seed = 7;
    int checked = 0, laid_out = 0;
    (void)state;
    for (int n = 0; n < 12; n++) {
        SmallSpace t;
        open_small(&t, n, &none);
        for (int i = 0; i < 25; i++) {
            const PlanPoint p = random_point(&t, &seed);
            const bool known = check_point(&t, &p);
            checked += known;
            laid_out += known && p.tp_weights;
        }
        close_small(&t);
    }
    assert_true(checked >= 200 && laid_out >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans),
                                       cmocka_unit_test(memory_is_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
