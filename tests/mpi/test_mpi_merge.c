/* test_mpi_merge.c -- trials of `sheaf verify` whose ranks are processes: each has the elements it
 * owns, and all get those of the others, to the bit. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "comm_test.h"
#include "verify/trial_parts.h"
#include "world/world.h"

enum { N = (1 << 15) + 5 }; /* a whole chunk and a part of one */
static double weight[N], gradient[N], owners[N];

/* Values whose bits a sum may lose: the sign of zero, and the smallest number. */
static double value(int i)
{
    static const double values[] = {-0.0, 0.0, 5e-324, -1.5, 3e300};
    return values[i % 5];
}

static Err merges(WorldRank *w, void *work)
{
    Trial *t = work;
    for (int i = 0; i < N; i++) {
        const bool mine = i % w->ranks == w->rank;
        owners[i] = mine;
        weight[i] = mine ? value(i) : 7;
        gradient[i] = mine ? -value(i) : 7;
    }
    owners[3] = 0;                  /* nobody's */
    if (w->rank < 2) owners[4] = 1; /* of two ranks */
    return trial_merge(w, t, owners);
}

static void elements_have_their_bits(void **state)
{
    Trial t = {.weight = weight, .gradient = gradient, .count = N};
    const WorldSettings set = {.ranks = test_mpi->ranks,
                               .comm_world = test_mpi,
                               .in_flight = 16,
                               .records = 16,
                               .timeout_s = 60,
                               .body = merges,
                               .work = &t};
    (void)state;
    assert_int_equal(world_run(&set), OK);
    for (int i = 0; i < N; i++) {
        const double w = value(i), g = -w;
        if (i == 3 || i == 4) {
            assert_true(isnan(weight[i]) && isnan(gradient[i]));
            continue;
        }
        if (memcmp(&weight[i], &w, sizeof w) != 0 || memcmp(&gradient[i], &g, sizeof g) != 0)
            fail_msg("element %d: %a and %a, not %a and %a", i, weight[i], gradient[i], w, g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_have_their_bits)};
    return cmocka_run_group_tests(tests, ranks_open, ranks_close);
}
