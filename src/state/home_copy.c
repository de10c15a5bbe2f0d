/* home_copy.c -- a device's memory is copied by runs, not by elements. */
#include "state/home_copy.h"

#include <stdlib.h>

/* From the first element of the box to its last. */
static size_t stretch_bytes(const Box *box, const BoxAt *at, size_t element)
{
    int64_t last = 0;
    for (int d = 0; d < box->ndim; d++) last += (box->hi[d] - box->lo[d] - 1) * at->stride[d];
    return (size_t)(last + 1) * element;
}

static Err fetch(const Rank *r, const BoxAt *home, size_t bytes, BoxAt *out)
{
    *out = *home;
    out->data = malloc(bytes);
    if (!out->data) return err_fail(ERR_NOMEM, "no memory for %zu bytes of a rank's home", bytes);
    const Err err = rank_read(r, home->data, bytes, out->data);
    if (err != OK) free(out->data);
    return err;
}

Err home_read(const Rank *r, const Box *box, size_t element, const BoxAt *home, char *dense)
{
    const BoxAt to = box_dense(box, dense);
    BoxAt here;
    if (box_count(box) == 0) return OK;
    if (rank_on_host(r)) {
        box_copy(box, element, home, &to);
        return OK;
    }
    if (box_is_run(box, home))
        return rank_read(r, home->data, (size_t)box_count(box) * element, dense);
    TRY(fetch(r, home, stretch_bytes(box, home, element), &here));
    box_copy(box, element, &here, &to);
    free(here.data);
    return OK;
}

Err home_write(Rank *r, const Box *box, size_t element, const BoxAt *home, const BoxAt *from)
{
    const size_t bytes = box_count(box) ? stretch_bytes(box, home, element) : 0;
    BoxAt here;
    if (box_count(box) == 0) return OK;
    if (rank_on_host(r)) {
        box_copy(box, element, from, home);
        return OK;
    }
    if (box_is_run(box, home) && box_is_run(box, from))
        return rank_write(r, home->data, bytes, from->data);
    TRY(fetch(r, home, bytes, &here));
    box_copy(box, element, from, &here);
    const Err err = rank_write(r, home->data, bytes, here.data);
    free(here.data);
    return err;
}
