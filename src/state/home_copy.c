/* home_copy.c -- copies device memory in contiguous ranges, since copies of single elements would
 * be slow. */
#include "state/home_copy.h"

#include <stdlib.h>

/* Returns the bytes from the first element of the box to its last, inclusive. */
static size_t extent_bytes(const Box *box, const BoxView *at, size_t element)
{
    int64_t last = 0;
    for (int d = 0; d < box->ndim; d++) last += (box->hi[d] - box->lo[d] - 1) * at->stride[d];
    return (size_t)(last + 1) * element;
}

static Err fetch(const Rank *r, const BoxView *home, size_t bytes, BoxView *out)
{
    *out = *home;
    out->data = malloc(bytes);
    if (!out->data) return err_fail(ERR_NOMEM, "no memory for %zu bytes of a rank's home", bytes);
    const Err err = rank_read(r, home->data, bytes, out->data);
    if (err != OK) free(out->data);
    return err;
}

Err home_read(const Rank *r, const Box *box, size_t element, const BoxView *home, char *dense)
{
    const BoxView to = box_dense(box, dense);
    BoxView staged;
    if (box_count(box) == 0) return OK;
    if (rank_on_host(r)) {
        box_copy(box, element, home, &to);
        return OK;
    }
    if (box_is_run(box, home))
        return rank_read(r, home->data, (size_t)box_count(box) * element, dense);
    TRY(fetch(r, home, extent_bytes(box, home, element), &staged));
    box_copy(box, element, &staged, &to);
    free(staged.data);
    return OK;
}

Err home_write(Rank *r, const Box *box, size_t element, const BoxView *home, const BoxView *from)
{
    const size_t bytes = box_count(box) ? extent_bytes(box, home, element) : 0;
    BoxView staged;
    if (box_count(box) == 0) return OK;
    if (rank_on_host(r)) {
        box_copy(box, element, from, home);
        return OK;
    }
    if (box_is_run(box, home) && box_is_run(box, from))
        return rank_write(r, home->data, bytes, from->data);
    TRY(fetch(r, home, bytes, &staged));
    box_copy(box, element, from, &staged);
    const Err err = rank_write(r, home->data, bytes, staged.data);
    free(staged.data);
    return err;
}
