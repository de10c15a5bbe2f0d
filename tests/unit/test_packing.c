/* test_packing.c -- packing: pieces with overlapping lifetimes never overlap in memory, the peak
 * is no less than the live bytes, and equal input gives equal offsets. Known optima are found. */
#include "support/expect.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/packing.h"

enum { A = ARENA_ALIGN };

static uint64_t draw(uint64_t *seed, uint64_t limit)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % limit;
}

static void draw_pieces(Piece *p, int n, int positions, int longest, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        const int first = (int)draw(&seed, (uint64_t)positions);
        p[i] = (Piece){.first = first,
                       .last = first + (int)draw(&seed, (uint64_t)longest),
                       .bytes = (size_t)draw(&seed, 4000),
                       .offset = 77};
    }
}

static bool together(const Piece *a, const Piece *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The most live bytes at any position, counted position by position. */
static size_t live_bytes(const Piece *p, int n, int positions)
{
    size_t most = 0;
    for (int at = 0; at < positions; at++) {
        size_t live = 0;
        for (int i = 0; i < n; i++)
            if (p[i].first <= at && at <= p[i].last) live += align_up(p[i].bytes);
        if (live > most) most = live;
    }
    return most;
}

static void expect_packed(const Piece *p, int n, const PackResult *packed)
{
    size_t top = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(p[i].offset % A, 0);
        if (p[i].offset + p[i].bytes > top) top = p[i].offset + p[i].bytes;
        for (int k = 0; k < i; k++) {
            const bool apart =
                p[i].offset + p[i].bytes <= p[k].offset || p[k].offset + p[k].bytes <= p[i].offset;
            if (together(&p[i], &p[k]) && !apart) fail_msg("pieces %d and %d overlap", k, i);
        }
    }
    assert_int_equal(align_up(top), packed->peak_bytes);
    assert_true(packed->peak_bytes >= packed->live_bytes);
}

static void random_pieces_do_not_overlap(void **state)
{
    Arena temp;
    Piece p[60], second[60];
    (void)state;
    DO(arena_open(&temp, "packing", (size_t)1 << 24));
    for (uint64_t seed = 1; seed <= 200; seed++) {
        const int n = 1 + (int)(seed % 60), positions = 1 + (int)(seed * 7 % 40);
        PackResult one, two;
        draw_pieces(p, n, positions, 1 + (int)(seed % 11), seed);
        draw_pieces(second, n, positions, 1 + (int)(seed % 11), seed);
        const size_t before = arena_mark(&temp);
        DO(pack(p, n, &temp, &one));
        DO(pack(second, n, &temp, &two));
        assert_int_equal(arena_mark(&temp), before);
        expect_packed(p, n, &one);
        assert_int_equal(one.live_bytes, live_bytes(p, n, positions + 11));
        assert_int_equal(one.peak_bytes, two.peak_bytes);
        for (int i = 0; i < n; i++) assert_int_equal(p[i].offset, second[i].offset);
    }
    arena_close(&temp);
}

typedef struct {
    const char *name;
    int n;
    Piece piece[6];
    size_t peak;
} Known;

static const Known known[] = {
    {"one after another share a place", 3, {{0, 1, A, 0}, {2, 3, A, 0}, {4, 4, A, 0}}, A},
    {"a position both touch is shared by neither", 2, {{0, 2, A, 0}, {2, 3, A, 0}}, 2 * A},
    {"all at once", 3, {{0, 9, A, 0}, {3, 5, 2 * A, 0}, {5, 7, 3 * A, 0}}, 6 * A},
    {"bytes are rounded up to places", 2, {{0, 0, 1, 0}, {0, 0, A + 1, 0}}, 3 * A},
    {"B takes the place of A below C", 3, {{0, 1, A, 0}, {2, 3, A, 0}, {0, 3, 2 * A, 0}}, 3 * A},
    /* In order of begin, the long piece would be placed above the first and the wide one above
     * both. */
    {"the largest first", 3, {{0, 1, A, 0}, {1, 3, A, 0}, {2, 3, 2 * A, 0}}, 3 * A},
    {"empty pieces need no space", 2, {{0, 5, 0, 0}, {0, 5, 0, 0}}, 0},
};

static void known_cases_are_optimal(void **state)
{
    Arena temp;
    (void)state;
    DO(arena_open(&temp, "packing", (size_t)1 << 20));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        Known k = known[i];
        PackResult packed;
        DO(pack(k.piece, k.n, &temp, &packed));
        expect_packed(k.piece, k.n, &packed);
        if (packed.peak_bytes != k.peak)
            fail_msg("%s: %zu bytes, not %zu", k.name, packed.peak_bytes, k.peak);
    }
    arena_close(&temp);
}

static void no_pieces(void **state)
{
    Arena temp;
    PackResult packed = {1, 1};
    (void)state;
    DO(arena_open(&temp, "packing", (size_t)1 << 20));
    DO(pack(NULL, 0, &temp, &packed));
    assert_int_equal(packed.peak_bytes, 0);
    assert_int_equal(packed.live_bytes, 0);
    arena_close(&temp);
}

/* A list of units and micro-batches has thousands of pieces, of which tens are live at once. */
static void many_are_packed_fast(void **state)
{
    enum { N = 5000 };
    Arena temp;
    PackResult packed;
    Piece *p;
    (void)state;
    DO(arena_open(&temp, "packing", (size_t)1 << 26));
    DO(ARENA_NEW(&temp, N, &p));
    draw_pieces(p, N, 3000, 60, 5);
    const clock_t start = clock();
    DO(pack(p, N, &temp, &packed));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    expect_packed(p, N, &packed);
    if (seconds > 1.0) fail_msg("%d pieces took %g s", N, seconds);
    assert_true((double)packed.peak_bytes < 1.5 * (double)packed.live_bytes);
    arena_close(&temp);
}

/* A memo returns what pack returns. Pieces that it knows need no work memory; a full one still
 * packs. */
static void known_pieces_are_found(void **state)
{
    enum { N = 100, SETS = 20 };
    Arena temp, none;
    PackMemo *memo, *full;
    Piece p[N], found[N];
    (void)state;
    DO(arena_open(&temp, "packing", (size_t)1 << 24));
    DO(arena_open(&none, "nothing", ARENA_ALIGN));
    DO(pack_memo_open(&temp, (size_t)1 << 20, &memo));
    DO(pack_memo_open(&temp, 4096, &full));
    for (int pass = 0; pass < 2; pass++)
        for (int set = 0; set < 2 * SETS; set++) { /* every second set differs in one piece alone */
            PackResult one, two, three;
            draw_pieces(p, N, 40, 9, (uint64_t)(set / 2));
            p[set % N].bytes += (size_t)(set % 2) * 2000;
            memcpy(found, p, sizeof p);
            DO(pack(p, N, &temp, &one));
            DO(pack_with(memo, found, N, pass ? &none : &temp, &two));
            expect_packed(found, N, &two);
            assert_int_equal(one.peak_bytes, two.peak_bytes);
            assert_int_equal(one.live_bytes, two.live_bytes);
            for (int i = 0; i < N; i++) assert_int_equal(p[i].offset, found[i].offset);
            DO(pack_with(full, found, N, &temp, &three));
            assert_int_equal(one.peak_bytes, three.peak_bytes);
        }
    arena_close(&none);
    arena_close(&temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_pieces_do_not_overlap),
        cmocka_unit_test(known_cases_are_optimal),
        cmocka_unit_test(no_pieces),
        cmocka_unit_test(many_are_packed_fast),
        cmocka_unit_test(known_pieces_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
