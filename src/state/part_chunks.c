/* part_chunks.c -- the chunks of a part: boxes of its tensor, each made of as few runs of its file
 * as possible.
 *
 *     dense         rows of the box, one run
 *     transposed    columns of the box, which are rows of the file */
#include <string.h>
#include "state/manifest.h"

bool manifest_is_weights(const Manifest *m) { return strcmp(m->scalars.optim, "none") == 0; }

static int64_t max_chunk(const StateTensors *t, const ManifestPart *p)
{
    int64_t element = (int64_t)dtype_bytes(t->tensor[p->tensor].dtype);
    if (p->stored && st_type_bytes(p->stored->type) > element)
        element = st_type_bytes(p->stored->type);
    return CHUNK_BYTES / element;
}

static Box transposed_box(const Box *box)
{
    Box out = {.ndim = box->ndim};
    for (int d = 0; d < box->ndim; d++) {
        out.lo[d] = box->lo[box->ndim - 1 - d];
        out.hi[d] = box->hi[box->ndim - 1 - d];
    }
    return out;
}

static Box as_stored(const ManifestPart *p, const Box *box)
{
    return p->stored && p->stored->transposed ? transposed_box(box) : *box;
}

int64_t part_chunks(const StateTensors *t, const ManifestPart *p)
{
    const Box there = as_stored(p, &p->box);
    return chunk_count(&there, max_chunk(t, p));
}

Box part_chunk(const StateTensors *t, const ManifestPart *p, int64_t i, int64_t *before)
{
    const Box there = as_stored(p, &p->box), chunk = chunk_at(&there, max_chunk(t, p), i, before);
    return as_stored(p, &chunk);
}
