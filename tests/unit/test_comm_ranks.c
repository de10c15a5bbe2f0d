/* test_comm_ranks.c -- the part of the interface above the backend, for many ranks: a backend
 * that moves nothing is rank 2 of 4, so that no test relies on a world of one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "comm/backend.h"

enum { ME = 2, N = 40 };

static Err still_begin(Comm *c, int slot)
{
    comm_progress(c, slot, MATCHED);
    return OK;
}

static Err still_wait(Comm *c, int slot)
{
    comm_progress(c, slot, DONE);
    return OK;
}

static void still_close(Comm *c) { (void)c; }

static const CommTable still = {
    .name = "still", .begin = still_begin, .wait = still_wait, .close = still_close};
static const int32_t all[4] = {0, 1, 2, 3}, mixed[3] = {3, 2, 0}, others[2] = {0, 3};
static const RankList world = {4, all}, three = {3, mixed};

static Arena arena;
static Comm *comm;
static float memory[N];

static int open_comm(void **state)
{
    (void)state;
    const CommSettings set = {.rank = ME, .ranks = 4, .in_flight = 4, .records = 8};
    if (arena_open(&arena, "test", 1 << 20) != OK) return -1;
    if (comm_open(&arena, &set, &still, NULL, &comm) != OK) return -1;
    return comm_register(comm, 0, memory, sizeof memory) == OK ? 0 : -1;
}

static int close_comm(void **state)
{
    (void)state;
    comm_close(comm);
    arena_close(&arena);
    return 0;
}

static Ref at(int64_t offset, int64_t count)
{
    return (Ref){ME, 0, (size_t)offset * sizeof(float), count, F32};
}

static void accepted(Transfer t)
{
    if (comm_do(comm, &t) != OK) fail_msg("%s", err_text());
}

static void refused(Transfer t, const char *words)
{
    assert_int_equal(comm_do(comm, &t), ERR_CHECK);
    if (!strstr(err_text(), words)) fail_msg("'%s' is not in '%s'", words, err_text());
}

/* My place in {3, 2, 0} is 1; in the world it is 2. */
static void parts_are_in_the_order_of_the_group(void **state)
{
    (void)state;
    const int64_t counts[3] = {5, 3, 0}, zeros[3] = {5, 0, 3};
    Transfer t = {.kind = COMM_ALL_GATHER, .group = three, .to_counts = counts, .to = at(10, 8)};
    t.from = at(0, 3);
    accepted(t);
    t.from = at(15, 3); /* in place: where my part goes */
    accepted(t);
    t.from = at(13, 3);
    refused(t, "not in place");
    t.from = at(0, 5);
    refused(t, "the part of member 1 is 5 elements, not 3");
    t.from = at(0, 0);
    t.to_counts = zeros;
    accepted(t);

    t = (Transfer){.kind = COMM_REDUCE_SCATTER, .group = three, .from_counts = counts};
    t.from = at(10, 8);
    t.to = at(15, 3);
    accepted(t);
    t.to = at(10, 3);
    refused(t, "not in place");
}

static void equal_parts(void **state)
{
    (void)state;
    Transfer t = {.kind = COMM_ALL_GATHER, .group = world, .from = at(20, 5), .to = at(10, 20)};
    accepted(t);
    t.group = three;
    refused(t, "20 elements do not divide by 3 members; give counts");
    t = (Transfer){.kind = COMM_ALL_TO_ALL, .group = world, .from = at(0, 8), .to = at(8, 8)};
    accepted(t);
    t.to = at(8, 12);
    refused(t, "part that stays with member 2 has two counts");
}

static void all_to_all_counts_may_differ(void **state)
{
    (void)state;
    const int64_t give[4] = {1, 0, 6, 2}, take[4] = {9, 3, 6, 0};
    Transfer t = {.kind = COMM_ALL_TO_ALL, .group = world, .from_counts = give, .to_counts = take};
    t.from = at(0, 9);
    t.to = at(9, 18);
    accepted(t);
    t.to = at(9, 17);
    refused(t, "sum to 18, not to 17");
}

static void only_the_own_side_is_needed(void **state)
{
    (void)state;
    Transfer t = {.kind = COMM_BROADCAST, .group = world, .from = {.rank = 3}, .to = at(0, 7)};
    accepted(t);
    assert_int_equal(recorder_at(comm_recorder(comm), comm_recorder(comm)->total - 1)->bytes, 28);
    t.group = three;
    t.from.rank = 1;
    refused(t, "rank 1 is not in the group");
    t = (Transfer){.kind = COMM_SEND, .group = world, .from = at(0, 7), .to = {.rank = 0}};
    accepted(t);
    t.group = (RankList){2, others};
    refused(t, "rank 2 uses a group of 2 ranks that it is not in");
}

/* The same ranks in another order, or for another purpose, are another group. */
static void groups_have_their_own_sequence(void **state)
{
    (void)state;
    static const int32_t reordered[3] = {0, 2, 3};
    const Recorder *r = comm_recorder(comm);
    Transfer t = {.kind = COMM_ALL_REDUCE, .group = three, .purpose = 5};
    t.from = t.to = at(0, 4);
    accepted(t);
    accepted(t);
    assert_int_equal(recorder_at(r, r->total - 1)->sequence, 1);
    t.group = (RankList){3, reordered};
    accepted(t);
    assert_int_equal(recorder_at(r, r->total - 1)->sequence, 0);
    t.purpose = 6;
    accepted(t);
    assert_int_equal(recorder_at(r, r->total - 1)->sequence, 0);
    const RankList kept = comm_group(comm, recorder_at(r, r->total - 1)->group);
    assert_int_equal(kept.n, 3);
    assert_memory_equal(kept.rank, reordered, sizeof reordered);
}

/* A group that ended leaves memory that the next one of its size uses. */
static void memory_of_ended_groups_is_reused(void **state)
{
    (void)state;
    static const int32_t mine = ME;
    const RankList self = {1, &mine};
    Transfer small = {.kind = COMM_ALL_REDUCE, .group = self, .purpose = 70};
    Transfer large = {.kind = COMM_ALL_REDUCE, .group = world, .purpose = 70};
    small.from = small.to = large.from = large.to = at(0, 4);
    accepted(small);
    accepted(large);
    const size_t used = arena_mark(&arena);
    for (int step = 0; step < 5; step++) {
        assert_int_equal(comm_group_end(comm, self, 70), OK);
        assert_int_equal(comm_group_end(comm, world, 70), OK);
        accepted(large); /* the small one's row is free too, and comes first */
        accepted(small);
    }
    assert_int_equal(arena_mark(&arena), used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_in_the_order_of_the_group),
        cmocka_unit_test(equal_parts),
        cmocka_unit_test(all_to_all_counts_may_differ),
        cmocka_unit_test(only_the_own_side_is_needed),
        cmocka_unit_test(groups_have_their_own_sequence),
        cmocka_unit_test(memory_of_ended_groups_is_reused),
    };
    return cmocka_run_group_tests(tests, open_comm, close_comm);
}
