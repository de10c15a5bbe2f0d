/* chunks.c -- splits a row of units into consecutive chunks.
 *
 * Two dynamic programs over (chunks left, first unit left): the first finds the least possible cost
 * of the most expensive chunk, the second the least sum of squares among all splits within that
 * cost. A chunk costs the sum of its units over its speed, and may have a limit of units. An even
 * split is a split by cost in which a layer costs 1. */
#include "schedule/chunks.h"

#include <math.h>
#include <string.h>
#include "schedule/action.h"

typedef struct {
    int units, chunks;
    const double *before; /* [units + 1]: the cost of all units before this one */
    const double *speed;  /* [chunks]; NULL: 1 */
    const int16_t *most;  /* [chunks]; NULL: any */
    double *best;         /* [chunks + 1][units + 1]: least cost or sum of the units from here on */
    int16_t *end;         /* [chunks + 1][units + 1]: the end of the first of these chunks */
} ChunkSearch;

/* The cost of the first of `left` chunks. */
static double sum(const ChunkSearch *s, int left, int from, int to)
{
    const double cost = s->before[to] - s->before[from];
    return s->speed ? cost / s->speed[s->chunks - left] : cost;
}

/* The last end that the first of `left` chunks may have; from: none, since the last chunk has all
 * units that are left. */
static int last_end(const ChunkSearch *s, int left, int from)
{
    const int room = s->units - (left - 1);
    if (!s->most || room - from <= s->most[s->chunks - left]) return room;
    return left == 1 ? from : from + s->most[s->chunks - left];
}

/* The last end of the first of `left` chunks, of those from `first` to `last`, that costs at most
 * `most`; below `first` if none does. Costs grow with the end. */
static int last_within(const ChunkSearch *s, int left, int from, int last, double most)
{
    const int first = left == 1 ? last : from + 1;
    int low = first - 1, high = last + 1; /* low costs at most `most`; high costs more */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (sum(s, left, from, middle) <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The same by trying all ends: with speeds, what is left may cost more if it has fewer units, since
 * a slow chunk must have one. */
static double least_of_all(const ChunkSearch *s, int left, int from, int last)
{
    const double *others = &s->best[(left - 1) * (s->units + 1)];
    double best = (double)INFINITY;
    for (int end = from + 1; end <= last; end++) {
        const double cost = sum(s, left, from, end);
        const double most = cost > others[end] ? cost : others[end];
        if (most < best) best = most;
    }
    return best;
}

/* The least cost of the most expensive of `left` chunks from `from` on. A longer first chunk costs
 * more and leaves less, so the best end is where the two cross: O(log units). INFINITY: there is
 * none. */
static double least_most(const ChunkSearch *s, int left, int from)
{
    const int last = last_end(s, left, from);
    if (last == from) return (double)INFINITY;
    if (left == 1) return sum(s, left, from, last);
    const double *others = &s->best[(left - 1) * (s->units + 1)];
    if (s->speed || s->most) return least_of_all(s, left, from, last);
    int low = from + 1, high = last; /* the chunk up to high costs at least as much as the others */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (sum(s, left, from, middle) >= others[middle])
            high = middle;
        else
            low = middle + 1;
    }
    const double cost = sum(s, left, from, high);
    double best = cost > others[high] ? cost : others[high];
    if (high - 1 > from && others[high - 1] < best) best = others[high - 1];
    return best;
}

/* Returns the least cost of the most expensive chunk of all units (most < 0), or the least sum of
 * squares if no chunk may cost more than `most`. O(chunks * units * log units) for the
 * largest cost; for the sum of squares, O(chunks * units * length of a chunk): no longer chunk
 * fits. */
static double search(ChunkSearch *s, double most)
{
    const int row = s->units + 1;
    for (int left = 1; left <= s->chunks; left++)
        for (int from = s->units - left; from >= 0; from--) {
            double *best = &s->best[left * row + from];
            *best = -1; /* no split is possible */
            if (most < 0) {
                *best = least_most(s, left, from);
                continue;
            }
            const int room = last_end(s, left, from), first = left == 1 ? room : from + 1;
            const int last = room == from ? from : last_within(s, left, from, room, most);
            for (int end = last; end >= first && end > from;
                 end--) { /* on a tie the longest wins */
                const double cost = sum(s, left, from, end);
                const double others = left == 1 ? 0 : s->best[(left - 1) * row + end];
                if (others < 0) continue;
                const double bad = cost * cost + others;
                if (*best >= 0 && bad >= *best) continue;
                *best = bad;
                s->end[left * row + from] = (int16_t)end;
            }
        }
    return s->best[s->chunks * row];
}

/* Fills out[1..chunks]; out[0] is 0. */
static Err deal(const ChunkDeal *d, Arena *arena, int16_t *out, bool *found)
{
    double *before;
    ChunkSearch s = {.units = d->units, .chunks = d->chunks, .speed = d->speed, .most = d->most};
    const int64_t cells = (int64_t)(d->chunks + 1) * (d->units + 1);
    TRY(ARENA_NEW(arena, d->units + 1, &before));
    TRY(ARENA_NEW(arena, cells, &s.best));
    TRY(ARENA_NEW(arena, cells, &s.end));
    for (int u = 0; u < d->units; u++) {
        const double layer = u > 0 && u < d->units - 1;
        before[u + 1] = before[u] + (d->cost ? d->cost[u] : layer);
    }
    s.before = before;
    const double least = search(&s, -1);
    *found = !isinf(least);
    if (!*found) return OK;
    search(&s, least);
    for (int c = 0; c < d->chunks; c++)
        out[c + 1] = s.end[(d->chunks - c) * (d->units + 1) + out[c]];
    return OK;
}

Err schedule_deal(const ChunkDeal *d, Arena *arena, const int16_t **first_unit, bool *found)
{
    int16_t *out;
    TRY(ARENA_NEW(arena, d->chunks + 1, &out));
    const size_t mark = arena_mark(arena);
    TRY(deal(d, arena, out, found));
    arena_rewind(arena, mark);
    *first_unit = out;
    return OK;
}

static Err split_by_cost(const ChunkRequest *r, const double *cost, Arena *arena, int16_t *out)
{
    bool found;
    return deal(&(ChunkDeal){.units = r->units, .chunks = r->chunks, .cost = cost}, arena, out,
                &found);
}

/* Parses "3,2,2" into counts. Returns how many there are, or -1 if the text is no such list. */
static int read_counts(const char *text, int most, int16_t *count)
{
    int n = 0;
    for (const char *p = text;; p++) {
        int value = 0, digits = 0;
        for (; *p >= '0' && *p <= '9' && value <= MAX_SCHEDULE; p++, digits++)
            value = 10 * value + (*p - '0');
        if (digits == 0 || value > MAX_SCHEDULE || (*p != ',' && *p != '\0')) return -1;
        if (n < most) count[n] = (int16_t)value;
        n++;
        if (*p == '\0') return n;
    }
}

static Err split_by_hand(const ChunkRequest *r, int16_t *out)
{
    const int layers = r->units - 2, n = read_counts(r->split, r->chunks, out + 1);
    if (n < 0)
        return err_fail(ERR_CONFIG,
                        "parallel.split is '%.64s'; allowed are even, cost, or layers in each "
                        "chunk, as 3,2,2",
                        r->split);
    if (n != r->chunks)
        return err_fail(ERR_CONFIG, "parallel.split is '%.64s': %d chunks; there are %d", r->split,
                        n, r->chunks);
    int64_t all = 0;
    for (int c = 1; c <= r->chunks; c++) all += out[c];
    if (all != layers && all != r->units)
        return err_fail(ERR_CONFIG,
                        "parallel.split is '%.64s': %lld layers; the model has %d (%d units, with "
                        "embedding and head)",
                        r->split, (long long)all, layers, r->units);
    if (all == layers) {
        out[1]++;
        out[r->chunks]++;
    }
    for (int c = 1; c <= r->chunks; c++) {
        if (out[c] == 0)
            return err_fail(ERR_CONFIG, "parallel.split is '%.64s': chunk %d would be empty",
                            r->split, c - 1);
        out[c] = (int16_t)(out[c - 1] + out[c]);
    }
    return OK;
}

Err schedule_chunks(const ChunkRequest *r, Arena *arena, const int16_t **first_unit)
{
    int16_t *out;
    if (r->chunks < 1 || r->chunks > r->units || r->units > MAX_SCHEDULE)
        return err_fail(ERR_CONFIG,
                        "%d chunks (mesh.pp times parallel.chunks) for %d units (embedding, %d "
                        "layers, head); allowed are 1 to %d",
                        r->chunks, r->units, r->units - 2,
                        r->units < MAX_SCHEDULE ? r->units : MAX_SCHEDULE);
    TRY(ARENA_NEW(arena, r->chunks + 1, &out));
    const size_t mark = arena_mark(arena);
    if (strcmp(r->split, "even") == 0)
        TRY(split_by_cost(r, NULL, arena, out));
    else if (strcmp(r->split, "cost") == 0)
        TRY(split_by_cost(r, r->cost, arena, out));
    else
        TRY(split_by_hand(r, out));
    arena_rewind(arena, mark);
    *first_unit = out;
    return OK;
}
