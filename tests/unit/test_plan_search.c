/* test_plan_search.c -- the search against brute force, its limits, its order. */
#include "plan_spaces.h"

#include "plan/search/parts.h"

static void finds_the_optimum(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    (void)state;
    fixed.sequence = fixed.by_cost = 0;
    fixed.micro = 2;
    for (int n = 0; n < 3; n++) {
        fixed.recompute = n;
        fixed.schedule = n == 2 ? "1f1b" : NULL;
        check_space(n, &fixed);
    }
}

/* Plans whose weights are laid out along tp by a search, beside Megatron's. */
static void finds_searched_layouts(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    int searched = 0, best = 0;
    (void)state;
    fixed.by_cost = fixed.recompute = 0;
    fixed.sequence = 1;
    fixed.micro = 2;
    fixed.schedule = "1f1b";
    for (int n = 0; n < 3; n += 2) {
        SmallSpace t;
        PlanRanking r;
        check_space(n, &fixed);
        open_small(&t, n, &fixed);
        for (int i = 0; i < t.s.n; i++) searched += t.s.node[i].point.tp_search;
        close_small(&t);
        fixed.tp = 2;
        open_small(&t, n, &fixed);
        DO(plan_search(&t.s, 1e12, 1, false, &r));
        if (r.n) best += t.s.node[r.node[0]].point.tp_weights != NULL;
        close_small(&t);
        fixed.tp = 0;
    }
    assert_true(searched > 0 && best > 0);
}

/* With few nodes the certificate is a gap: its bound is not above the optimum. */
static void few_nodes_give_a_gap(void **state)
{
    PlanFixed some = plan_fixed_none();
    SmallSpace t;
    PlanRanking all, few;
    (void)state;
    some.micro = 1;
    some.recompute = some.sequence = some.by_cost = 0;
    open_small(&t, 0, &some);
    DO(plan_search(&t.s, 1e12, 1, false, &all));
    assert_true(all.complete);
    close_small(&t);
    int gaps = 0;
    for (int played = 1; played < 30; played += 7) {
        open_small(&t, 0, &some);
        t.s.max_played = played;
        DO(plan_search(&t.s, 1e12, 1, false, &few));
        if (few.n == 1) {
            const double best = t.s.node[few.node[0]].key_s;
            assert_true(few.bound_s <= all.bound_s && best >= all.bound_s);
            assert_true(few.complete == (few.bound_s == best));
            gaps += !few.complete;
        }
        close_small(&t);
    }
    assert_true(gaps > 0);
}

/* The plans of a ranking are on different meshes, in order, and two searches agree. */
static void is_ordered_and_repeats(void **state)
{
    PlanFixed some = plan_fixed_none();
    SmallSpace a, b;
    PlanRanking x, y;
    (void)state;
    some.micro = 2;
    some.recompute = some.by_cost = 0;
    open_small(&a, 0, &some);
    open_small(&b, 0, &some);
    DO(plan_search(&a.s, 1e12, 4, true, &x));
    DO(plan_search(&b.s, 1e12, 4, true, &y));
    assert_int_equal(x.n, 4);
    for (int i = 0; i < 4; i++) {
        const PlanNode *n = &a.s.node[x.node[i]];
        assert_int_equal(x.node[i], y.node[i]);
        if (i) assert_true(n->key_s >= a.s.node[x.node[i - 1]].key_s);
        for (int k = 0; k < i; k++) {
            const MeshSizes *m = &a.s.node[x.node[k]].point.mesh;
            assert_false(m->tp == n->point.mesh.tp && m->cp == n->point.mesh.cp &&
                         m->pp == n->point.mesh.pp);
        }
    }
    assert_int_equal(a.s.counts.played, b.s.counts.played);
    assert_true(a.s.excess == 0);
    close_small(&a);
    close_small(&b);
}

/* A plan is linked up to the first rank that does not fit: it stays a bound until it fits. */
static void links_up_to_the_limit(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    SmallSpace t;
    int linked = 0;
    (void)state;
    fixed.micro = 2;
    fixed.recompute = fixed.by_cost = 0;
    fixed.schedule = "1f1b";
    open_small(&t, 0, &fixed);
    for (int i = 0; i < t.s.n && linked < 20; i += 3) {
        PlanNode *node = &t.s.node[i];
        double bytes;
        while (node->level != LEVEL_TIMED && node->level != LEVEL_REFUSED)
            DO(search_raise(&t.s, node));
        if (node->level == LEVEL_REFUSED || plan_link(&t.s, &node->point, &bytes) != OK) continue;
        t.s.limit_bytes = bytes - 1;
        DO(search_raise(&t.s, node));
        assert_int_equal(node->level, LEVEL_TIMED);
        assert_true(node->memory_bytes > t.s.limit_bytes && node->memory_bytes <= bytes);
        t.s.limit_bytes = bytes;
        DO(search_raise(&t.s, node));
        assert_int_equal(node->level, LEVEL_LINKED);
        assert_true(node->memory_bytes == bytes);
        linked++;
    }
    assert_int_equal(linked, 20);
    close_small(&t);
}

/* What is fixed stays fixed. */
static void keeps_what_is_fixed(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    SmallSpace t;
    (void)state;
    fixed.tp = 2;
    fixed.zero = 1;
    fixed.recompute = RECOMPUTE_FULL;
    fixed.micro = 2;
    open_small(&t, 2, &fixed);
    assert_true(t.s.n > 0);
    for (int i = 0; i < t.s.n; i++) {
        const PlanPoint *p = &t.s.node[i].point;
        assert_true(p->mesh.tp == 2 && p->zero == 1 && p->recompute == RECOMPUTE_FULL &&
                    p->micro == 2);
        assert_int_equal(plan_dp(p) * p->mesh.tp * p->mesh.cp * p->mesh.pp, 8);
    }
    close_small(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_optimum),      cmocka_unit_test(finds_searched_layouts),
        cmocka_unit_test(few_nodes_give_a_gap),   cmocka_unit_test(links_up_to_the_limit),
        cmocka_unit_test(is_ordered_and_repeats), cmocka_unit_test(keeps_what_is_fixed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
