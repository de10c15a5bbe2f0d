/* chunks.c -- names of roles, and the split of a box into chunks.
 *
 *     box [3, 5, 4], at most 9 elements: a slice of dim 0 has 20, too many; one of dim 1 has 4
 *
 *         (0, rows 0-1) (0, 2-3) (0, 4)   (1, 0-1) (1, 2-3) (1, 4)   (2, ...)      9 chunks
 *          lead = 3 slices of the dims before; in each, ceil(5 / 2) runs of 2 rows */
#include <string.h>
#include "state/tensors.h"

static const char *const role_names[N_STATE_ROLES] = {"weight", "moment1", "moment2"};

const char *state_role_name(StateRole role) { return role_names[role]; }

int state_role_of(const char *name)
{
    for (int i = 0; i < N_STATE_ROLES; i++)
        if (strcmp(name, role_names[i]) == 0) return i;
    return -1;
}

/* The split of a box: along dim d, in runs of `rows` slices of `slice` elements. Each of the `lead`
 * slices of the dims before d is split separately. */
typedef struct {
    int d;
    int64_t lead, rows, slice;
    int64_t runs; /* per lead */
} ChunkGrid;

static ChunkGrid chunk_grid(const Box *box, int64_t max)
{
    ChunkGrid c = {.d = 0, .lead = 1, .rows = 1, .slice = box_count(box), .runs = 1};
    MUST(max >= 1, "chunks of %lld elements", (long long)max);
    if (c.slice == 0) return (ChunkGrid){.runs = 0};
    for (; c.d < box->ndim; c.d++) {
        const int64_t n = box->hi[c.d] - box->lo[c.d];
        c.slice /= n;
        if (c.slice <= max) { /* the last dim's slice is one element */
            c.rows = max / c.slice;
            c.runs = (n - 1) / c.rows + 1;
            break;
        }
        c.lead *= n;
    }
    return c;
}

int64_t chunk_count(const Box *box, int64_t max)
{
    const ChunkGrid c = chunk_grid(box, max);
    return c.lead * c.runs;
}

Box chunk_at(const Box *box, int64_t max, int64_t i, int64_t *before)
{
    const ChunkGrid c = chunk_grid(box, max);
    Box out = *box;
    MUST(i >= 0 && i < c.lead * c.runs, "chunk %lld of %lld", (long long)i,
         (long long)(c.lead * c.runs));
    *before = 0;
    if (box->ndim == 0) return out;
    int64_t lead = i / c.runs;
    const int64_t first = i % c.runs * c.rows, n = box->hi[c.d] - box->lo[c.d];
    *before = lead * n * c.slice + first * c.slice;
    for (int d = c.d - 1; d >= 0; d--) {
        const int64_t extent = box->hi[d] - box->lo[d];
        out.lo[d] = box->lo[d] + lead % extent;
        out.hi[d] = out.lo[d] + 1;
        lead /= extent;
    }
    out.lo[c.d] = box->lo[c.d] + first;
    if (n - first > c.rows) out.hi[c.d] = out.lo[c.d] + c.rows;
    return out;
}
