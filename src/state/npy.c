/* npy.c -- parses and writes files of numpy. The header is a Python literal, of which numpy itself
 * writes this one form. */
#include "state/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC_BYTES = 6, MAX_NPY_HEADER = 1 << 16 };
static const char magic[] = "\x93NUMPY";

static Err malformed(const char *path, const char *why)
{
    return err_fail(ERR_CHECK, "%s: the header of a .npy file: %s; write it again with numpy.save",
                    path, why);
}

/* The text after a key and its colon; NULL: there is no such key. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (!at) return NULL;
    at += strlen(key);
    return at + strspn(at, " :");
}

static Err parse_type(const char *path, const char *header, StType *out)
{
    static const struct {
        const char *text;
        StType type;
    } known[] = {{"'<f2'", ST_F16}, {"'<f4'", ST_F32}, {"'<f8'", ST_F64}};
    const char *descr = value_of(header, "'descr'");
    if (!descr) return malformed(path, "no descr");
    for (int i = 0; i < 3; i++)
        if (strncmp(descr, known[i].text, strlen(known[i].text)) == 0) {
            *out = known[i].type;
            return OK;
        }
    return err_fail(ERR_CONFIG,
                    "%s: elements of type %.*s; arrays of float16, float32 and float64 are read "
                    "(numpy: x.astype('float32'))",
                    path, (int)strcspn(descr, ","), descr);
}

/* Parses "(3, 8)" or "(3,)". */
static Err parse_shape(const char *path, const char *header, StTensor *t)
{
    const char *at = value_of(header, "'shape'");
    if (!at || *at++ != '(') return malformed(path, "no shape");
    while (*at != ')') {
        char *end;
        const long long n = strtoll(at, &end, 10);
        if (end == at || n < 0 || n > INT64_MAX / 16) return malformed(path, "a malformed shape");
        if (t->ndim == MAX_ST_DIMS) return malformed(path, "more than 8 dims");
        t->n[t->ndim++] = n;
        at = end + strspn(end, ", ");
    }
    return OK;
}

static Err check_length(const char *path, Bytes file, int64_t start, StTensor *t)
{
    int64_t count = 1, left = (int64_t)file.bytes - start;
    for (int i = 0; i < t->ndim; i++) {
        if (t->n[i] > 0 && count > INT64_MAX / 16 / t->n[i])
            return malformed(path, "a shape that no file can have");
        count *= t->n[i];
    }
    t->at = start;
    t->bytes = count * st_type_bytes(t->type);
    if (t->bytes == left) return OK;
    return err_fail(ERR_CHECK, "%s: its shape needs %lld bytes and %lld follow the header: %s",
                    path, (long long)t->bytes, (long long)left,
                    left < t->bytes ? "the file was cut short"
                                    : "the file has more than the array");
}

Err npy_parse(const char *path, Bytes file, StTensor *out)
{
    StTensor t = {.name = path};
    char header[MAX_NPY_HEADER + 1];
    if (file.bytes < 10 || memcmp(file.at, magic, MAGIC_BYTES) != 0)
        return err_fail(ERR_CHECK, "%s: is no .npy file: it does not begin with \\x93NUMPY", path);
    const int version = file.at[MAGIC_BYTES], wide = version > 1;
    const size_t first = wide ? 12 : 10;
    if (version < 1 || version > 3) return malformed(path, "its version is not 1, 2 or 3");
    if (file.bytes < first) return malformed(path, "the file ends in it");
    size_t length = (size_t)file.at[8] | (size_t)file.at[9] << 8;
    if (wide) length |= (size_t)file.at[10] << 16 | (size_t)file.at[11] << 24;
    if (length > MAX_NPY_HEADER) return malformed(path, "it has more than 65536 bytes");
    if (length > file.bytes - first) return malformed(path, "the file ends in it");
    memcpy(header, file.at + first, length);
    header[length] = '\0';
    const char *order = value_of(header, "'fortran_order'");
    if (!order) return malformed(path, "no fortran_order");
    if (strncmp(order, "False", 5) != 0)
        return err_fail(ERR_CONFIG,
                        "%s: the array is in Fortran order; write it again as "
                        "numpy.ascontiguousarray(x)",
                        path);
    TRY(parse_type(path, header, &t.type));
    TRY(parse_shape(path, header, &t));
    TRY(check_length(path, file, (int64_t)(first + length), &t));
    *out = t;
    return OK;
}

static Err write_failed(const NpyWriter *w)
{
    return err_fail(ERR_IO, "%s: cannot write: %s", w->path, strerror(errno));
}

Err npy_create(NpyWriter *w, const char *path, int ndim, const int64_t *n)
{
    char text[512];
    int used = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    *w = (NpyWriter){path, fopen(path, "wb")};
    if (!w->file) return write_failed(w);
    for (int i = 0; i < ndim; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%lld,%s", (long long)n[i],
                         i + 1 < ndim ? " " : "");
    used += snprintf(text + used, sizeof text - (size_t)used, "), }");
    const int padded = (10 + used + 1 + 63) / 64 * 64 - 10; /* data is aligned to 64 bytes */
    fwrite(magic, 1, MAGIC_BYTES, w->file);
    fputc(1, w->file);
    fputc(0, w->file);
    fputc(padded & 255, w->file);
    fputc(padded >> 8, w->file);
    fprintf(w->file, "%-*s\n", padded - 1, text);
    return ferror(w->file) ? write_failed(w) : OK;
}

Err npy_write(NpyWriter *w, const float *x, int64_t n)
{
    return (int64_t)fwrite(x, sizeof *x, (size_t)n, w->file) == n ? OK : write_failed(w);
}

Err npy_close(NpyWriter *w)
{
    FILE *file = w->file;
    w->file = NULL;
    if (!file) return OK;
    const bool bad = ferror(file) != 0;
    return fclose(file) == 0 && !bad ? OK : write_failed(w);
}
