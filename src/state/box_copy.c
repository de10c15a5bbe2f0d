/* box_copy.c -- copies boxes run by run. A run covers the trailing dims that are contiguous in
 * both views. */
#include "state/box_copy.h"

#include <string.h>

BoxView box_dense(const Box *box, void *data)
{
    BoxView at = {.data = data};
    int64_t each = 1;
    for (int d = box->ndim - 1; d >= 0; d--) {
        at.stride[d] = each;
        each *= box->hi[d] - box->lo[d];
    }
    return at;
}

BoxView box_inside(const BoxView *at, const Box *outer, const Box *inner, size_t element)
{
    BoxView part = *at;
    int64_t skip = 0;
    for (int d = 0; d < outer->ndim; d++) skip += (inner->lo[d] - outer->lo[d]) * at->stride[d];
    part.data += skip * (int64_t)element;
    return part;
}

/* Returns the first dim of the trailing dims that form one run of *count elements. */
static int run_from(const Box *box, const BoxView *at, int64_t *count)
{
    int d = box->ndim;
    *count = 1;
    for (; d > 0; d--) {
        const int64_t n = box->hi[d - 1] - box->lo[d - 1];
        if (n != 1 && at->stride[d - 1] != *count) break;
        *count *= n;
    }
    return d;
}

bool box_is_run(const Box *box, const BoxView *at)
{
    int64_t count;
    return run_from(box, at, &count) == 0;
}

/* Advances the index over the first `dims` dims; false after the last. */
static bool next_index(const Box *box, int dims, int64_t index[MAX_DIMS])
{
    for (int d = dims - 1; d >= 0; d--) {
        if (++index[d] < box->hi[d] - box->lo[d]) return true;
        index[d] = 0;
    }
    return false;
}

void box_copy(const Box *box, size_t element, const BoxView *from, const BoxView *to)
{
    int64_t index[MAX_DIMS] = {0}, run, other;
    int dims = run_from(box, from, &run);
    const int others = run_from(box, to, &other);
    if (others > dims) dims = others, run = other;
    if (box_count(box) == 0) return;
    do {
        int64_t in = 0, out = 0;
        for (int d = 0; d < dims; d++) {
            in += index[d] * from->stride[d];
            out += index[d] * to->stride[d];
        }
        memcpy(to->data + out * (int64_t)element, from->data + in * (int64_t)element,
               (size_t)run * element);
    } while (next_index(box, dims, index));
}
