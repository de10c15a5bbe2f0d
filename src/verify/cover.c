/* cover.c -- a greedy covering array over all possible rows. */
#include "verify/cover.h"

#include <string.h>

/* MAX_COVER_OPTIONS over 3 */
enum { MAX_SETS = MAX_COVER_OPTIONS * (MAX_COVER_OPTIONS - 1) * (MAX_COVER_OPTIONS - 2) / 6 };
_Static_assert((int)MAX_COVER_STRENGTH == 3, "MAX_SETS counts triples");

typedef struct {
    const CoverSpace *s;
    int strength, most_values;
    int n_sets, set[MAX_SETS][MAX_COVER_STRENGTH]; /* of options */
    bool *seen;                                    /* [n_sets][most_values ^ strength] */
    uint8_t *row;                                  /* [n_rows][s->n] */
    uint16_t *most_new;                            /* [n_rows]: new sets of a row, at most */
    int64_t n_rows;
} Cover;

/* Visits every row that is possible, in order. Writes them where there is room, and counts. */
static void list_rows(Cover *c, int *value, int n)
{
    const CoverSpace *s = c->s;
    if (n == s->n) {
        for (int i = 0; i < n && c->row; i++) c->row[c->n_rows * n + i] = (uint8_t)value[i];
        c->n_rows++;
        return;
    }
    for (int v = 0; v < s->values[n]; v++) {
        value[n] = v;
        if (s->may(s->context, value, n + 1)) list_rows(c, value, n + 1);
    }
}

/* Lists the sets of `strength` options. */
static void list_sets(Cover *c, int *set, int n, int from)
{
    if (n == c->strength || n == MAX_COVER_STRENGTH) {
        memcpy(c->set[c->n_sets++], set, (size_t)n * sizeof *set);
        return;
    }
    for (int i = from; i < c->s->n; i++) {
        set[n] = i;
        list_sets(c, set, n + 1, i + 1);
    }
}

static int64_t set_size(const Cover *c)
{
    int64_t size = 1;
    for (int i = 0; i < c->strength; i++) size *= c->most_values;
    return size;
}

/* Whether the values that the row has for a set of options have occurred. */
static bool *seen_of(const Cover *c, const uint8_t *row, int set)
{
    int64_t at = set;
    for (int i = 0; i < c->strength; i++) at = at * c->most_values + row[c->set[set][i]];
    return &c->seen[at];
}

static int count_new(const Cover *c, const uint8_t *row)
{
    int n = 0;
    for (int i = 0; i < c->n_sets; i++) n += !*seen_of(c, row, i);
    return n;
}

static Err open_cover(Cover *c, Arena *arena)
{
    int value[MAX_COVER_OPTIONS], set[MAX_COVER_STRENGTH];
    MUST(c->s->n <= MAX_COVER_OPTIONS && c->strength <= MAX_COVER_STRENGTH, "%d options", c->s->n);
    for (int i = 0; i < c->s->n; i++)
        if (c->s->values[i] > c->most_values) c->most_values = c->s->values[i];
    list_sets(c, set, 0, 0);
    list_rows(c, value, 0);
    TRY(ARENA_NEW(arena, c->n_rows * c->s->n + 1, &c->row));
    c->n_rows = 0;
    list_rows(c, value, 0);
    TRY(ARENA_NEW(arena, c->n_rows + 1, &c->most_new));
    for (int64_t i = 0; i < c->n_rows; i++) c->most_new[i] = UINT16_MAX;
    return ARENA_NEW(arena, c->n_sets * set_size(c) + 1, &c->seen);
}

/* The first row with the most new sets; NULL if none has any. The new sets of a row only become
 * fewer, so an earlier count is a bound, and most rows are not counted again. */
static const uint8_t *best_row(Cover *c)
{
    const uint8_t *best = NULL;
    int most = 0;
    for (int64_t i = 0; i < c->n_rows; i++) {
        const uint8_t *row = &c->row[i * c->s->n];
        if (c->most_new[i] <= most) continue;
        c->most_new[i] = (uint16_t)count_new(c, row);
        if (c->most_new[i] > most) most = c->most_new[i], best = row;
    }
    return best;
}

Err cover_rows(const CoverSpace *s, int strength, Arena *arena, int **rows, int *n)
{
    Cover c = {.s = s, .strength = strength};
    int *list;
    TRY(open_cover(&c, arena));
    TRY(ARENA_NEW(arena, c.n_rows * s->n + 1, &list));
    for (*n = 0;; (*n)++) {
        const uint8_t *best = best_row(&c);
        if (!best) break;
        for (int i = 0; i < c.n_sets; i++) *seen_of(&c, best, i) = true;
        for (int i = 0; i < s->n; i++) list[*n * s->n + i] = best[i];
    }
    *rows = list;
    return OK;
}
