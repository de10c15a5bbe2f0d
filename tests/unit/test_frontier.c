/* test_frontier.c -- Pareto lists against brute force. */
#include "support/expect.h"

#include <math.h>
#include <stdlib.h>
#include "plan/search/frontier.h"

static uint64_t seed = 5;

static double random_number(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 40) / 1e5;
}

/* The least seconds of n units with `choices` choices each within the bytes; 1e30: none. */
static double brute(const FrontierPoint *c, int choices, int n, double bytes)
{
    double best = 1e30;
    if (n == 0) return bytes >= -1e-9 ? 0 : 1e30;
    for (int i = 0; i < choices; i++) {
        const double rest = brute(c, choices, n - 1, bytes - c[i].bytes);
        if (rest < 1e29 && c[i].seconds + rest < best) best = c[i].seconds + rest;
    }
    return best;
}

/* Small lists are exact under any limit, and a point counts its choices. */
static void sums_are_exact(void **state)
{
    Arena a;
    (void)state;
    DO(arena_open(&a, "frontier", ARENA_PLENTY));
    for (int round = 0; round < 40; round++) {
        const int choices = 1 + round % 4, n = 1 + round % 5;
        FrontierPoint c[4];
        const Frontier *one, *all;
        for (int i = 0; i < choices; i++)
            c[i] = (FrontierPoint){random_number(), random_number(), i, 0};
        DO(frontier_open(c, choices, 2, &a, &one));
        DO(frontier_power(one, n, ROUND_UP, &a, &all));
        for (int k = 0; k < 20; k++) {
            const double limit = random_number() * n;
            const double best = brute(c, choices, n, limit);
            const int at = frontier_find(all, limit);
            assert_int_equal(at >= 0, best < 1e29);
            if (at < 0) continue;
            assert_true(fabs(all->at[at].seconds - best) < 1e-9 * best);
            int count[6] = {0};
            double bytes = 0, seconds = 0;
            frontier_count(all, at, count);
            for (int i = 0; i < choices; i++) {
                bytes += count[2 + i] * c[i].bytes;
                seconds += count[2 + i] * c[i].seconds;
            }
            assert_true(fabs(bytes - all->at[at].bytes) < 1e-9 * bytes);
            assert_true(fabs(seconds - all->at[at].seconds) < 1e-9 * seconds);
        }
        for (int i = 1; i < all->n; i++)
            assert_true(all->at[i].bytes > all->at[i - 1].bytes &&
                        all->at[i].seconds < all->at[i - 1].seconds);
    }
    arena_close(&a);
}

/* The exact optimum of n alike units by bytes in whole numbers. */
static double table(const FrontierPoint *c, int choices, int n, int bytes)
{
    double *best = calloc((size_t)bytes + 1, sizeof *best);
    for (int u = 0; u < n; u++)
        for (int b = bytes; b >= 0; b--) {
            double least = 1e30;
            for (int i = 0; i < choices; i++)
                if ((int)c[i].bytes <= b && best[b - (int)c[i].bytes] + c[i].seconds < least)
                    least = best[b - (int)c[i].bytes] + c[i].seconds;
            best[b] = least;
        }
    const double out = best[bytes];
    free(best);
    return out;
}

/* Lists that are too long bracket the optimum, within 2%. */
static void roundings_bracket(void **state)
{
    enum { N = 126, CHOICES = 5 };
    Arena a;
    (void)state;
    DO(arena_open(&a, "frontier", ARENA_PLENTY));
    for (int round = 0; round < 5; round++) {
        FrontierPoint c[CHOICES];
        const Frontier *one, *down, *up;
        for (int i = 0; i < CHOICES; i++) {
            const double bytes = 3 + (int)(random_number() / 4) + 31 * i;
            c[i] = (FrontierPoint){bytes, 900 / (40 + bytes) + random_number() / 100, i, 0};
        }
        DO(frontier_open(c, CHOICES, 0, &a, &one));
        DO(frontier_power(one, N, ROUND_DOWN, &a, &down));
        DO(frontier_power(one, N, ROUND_UP, &a, &up));
        assert_true(one->n < 3 || up->n > 50);
        const int low = (int)up->at[0].bytes, high = (int)up->at[up->n - 1].bytes;
        for (int k = 1; k < 8; k++) {
            const int limit = low + (high - low) * k / 8;
            const double best = table(c, CHOICES, N, limit);
            const int d = frontier_find(down, limit), u = frontier_find(up, limit);
            assert_true(d >= 0 && u >= 0);
            assert_true(down->at[d].seconds <= best * (1 + 1e-12));
            assert_true(up->at[u].seconds >= best * (1 - 1e-12));
            assert_true(up->at[u].seconds <= 1.02 * down->at[d].seconds);
        }
    }
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_exact),
                                       cmocka_unit_test(roundings_bracket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
