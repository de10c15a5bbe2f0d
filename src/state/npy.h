/* npy.h -- files of numpy: one array.
 *
 *     "\x93NUMPY" version 1 or 2, length of the header, "{'descr': '<f4', 'fortran_order': False,
 *     'shape': (3, 8), }" padded with spaces and a newline, then the data, row-major
 *
 * Floating-point types, little-endian: f2, f4, f8. Other types, Fortran order, a header that is
 * truncated or malformed, and a length that does not match the shape are errors that name the
 * file and the rule. */
#ifndef STATE_NPY_H
#define STATE_NPY_H

#include "data/tokens.h"
#include "state/safetensors.h"

/* Local. Parses a whole file in memory. `at` of the tensor is the offset of its data. */
Err npy_parse(const char *path, Bytes file, StTensor *out);

/* A file that is being written: floats as f32. */
typedef struct {
    const char *path;
    FILE *file;
} NpyWriter;
/* Local. Opens a new file of that shape. The caller writes all elements, then closes it. */
Err npy_create(NpyWriter *w, const char *path, int ndim, const int64_t *n);
Err npy_write(NpyWriter *w, const float *x, int64_t n);
Err npy_close(NpyWriter *w);

#endif
