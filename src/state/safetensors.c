/* safetensors.c -- reads and checks a header.
 *
 *     8 bytes N  ->  N bytes JSON  ->  entries  ->  sorted by offset: each begins where the one
 *     before it ends, the first at 0, the last ends with the file
 *
 * Every number of the header is checked against the length of the file before it is used, so
 * allocations are proportional to that length. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include "state/disk.h"
#include "state/hash.h"
#include "state/safetensors.h"
#include "state/strict.h"

enum { LENGTH_BYTES = 8, MAX_DEPTH = 3 };

static const struct {
    const char *name;
    int bytes;
} type_info[N_ST_TYPES] = {
    [ST_BOOL] = {"BOOL", 1}, [ST_U8] = {"U8", 1},           [ST_I8] = {"I8", 1},
    [ST_I16] = {"I16", 2},   [ST_U16] = {"U16", 2},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2}, [ST_I32] = {"I32", 4},         [ST_U32] = {"U32", 4},
    [ST_F32] = {"F32", 4},   [ST_F64] = {"F64", 8},         [ST_I64] = {"I64", 8},
    [ST_U64] = {"U64", 8},   [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
};

const char *st_type_name(StType t) { return type_info[t].name; }
int st_type_bytes(StType t) { return type_info[t].bytes; }

StType st_type_of(DType dtype)
{
    static const StType of[N_DTYPES] = {
        [F64] = ST_F64, [F32] = ST_F32, [BF16] = ST_BF16, [I32] = ST_I32, [I64] = ST_I64};
    return of[dtype];
}

/* ---- one entry ---- */

static Err read_type(const char *path, const char *name, const json_t *x, StType *out)
{
    const char *word = json_string_value(x);
    for (int i = 0; word && i < N_ST_TYPES; i++)
        if (strcmp(word, type_info[i].name) == 0) {
            *out = (StType)i;
            return OK;
        }
    return err_fail(ERR_CHECK, "%s: tensor \"%.100s\": dtype %s%.20s%s is unknown", path, name,
                    word ? "\"" : "", word ? word : "that is not a string", word ? "\"" : "");
}

/* Reads the shape and computes its bytes. */
static Err read_shape(const char *path, const json_t *x, StTensor *t, int64_t *bytes)
{
    const size_t ndim = json_array_size(x);
    int64_t count = st_type_bytes(t->type);
    if (!json_is_array(x))
        return err_fail(ERR_CHECK, "%s: tensor \"%.100s\": its shape is not a list", path, t->name);
    if (ndim > MAX_ST_DIMS)
        return err_fail(ERR_CHECK, "%s: tensor \"%.100s\" has %zu dims; at most %d can be read",
                        path, t->name, ndim, MAX_ST_DIMS);
    for (size_t d = 0; d < ndim; d++) {
        if (!strict_int(json_array_get(x, d), 0, INT64_MAX, &t->n[d]))
            return err_fail(ERR_CHECK, "%s: tensor \"%.100s\": extent %zu is no count", path,
                            t->name, d);
        if (__builtin_mul_overflow(count, t->n[d], &count))
            return err_fail(ERR_CHECK, "%s: tensor \"%.100s\": its shape has more bytes than 2^63",
                            path, t->name);
    }
    t->ndim = (int)ndim;
    *bytes = count;
    return OK;
}

static Err read_offsets(const char *path, const json_t *x, int64_t data_bytes, StTensor *t)
{
    int64_t end;
    if (json_array_size(x) != 2 || !strict_int(json_array_get(x, 0), 0, INT64_MAX, &t->at) ||
        !strict_int(json_array_get(x, 1), t->at, INT64_MAX, &end))
        return err_fail(ERR_CHECK,
                        "%s: tensor \"%.100s\": data_offsets is not a begin and a later end", path,
                        t->name);
    if (end > data_bytes)
        return err_fail(ERR_CHECK,
                        "%s: tensor \"%.100s\" ends at byte %lld of the data, which has %lld: the "
                        "file is truncated, or its header is wrong",
                        path, t->name, (long long)end, (long long)data_bytes);
    t->bytes = end - t->at;
    return OK;
}

static Err read_entry(const StFile *f, const char *name, const json_t *x, Arena *a, StTensor *out)
{
    static const char *const member[] = {"dtype", "shape", "data_offsets"};
    char what[128];
    int64_t bytes;
    StTensor t = {0};
    snprintf(what, sizeof what, "tensor \"%.100s\"", name);
    TRY(strict_members(f->path, what, x, member, 3));
    TRY(arena_string(a, name, &t.name));
    TRY(read_type(f->path, name, json_object_get(x, "dtype"), &t.type));
    TRY(read_shape(f->path, json_object_get(x, "shape"), &t, &bytes));
    TRY(read_offsets(f->path, json_object_get(x, "data_offsets"), f->data_bytes, &t));
    if (t.bytes != bytes)
        return err_fail(ERR_CHECK,
                        "%s: tensor \"%.100s\": %lld bytes of data, but its dtype and shape make "
                        "%lld",
                        f->path, name, (long long)t.bytes, (long long)bytes);
    *out = t;
    return OK;
}

static Err read_metadata(const json_t *x, Arena *a, StFile *f)
{
    const char *key;
    json_t *value;
    StPair *pair;
    if (!json_is_object(x))
        return err_fail(ERR_CHECK, "%s: __metadata__ is not an object", f->path);
    TRY(ARENA_NEW(a, json_object_size(x), &pair));
    f->pair = pair;
    json_object_foreach((json_t *)(uintptr_t)x, key, value)
    {
        StPair *p = &pair[f->n_pairs++];
        if (!json_is_string(value))
            return err_fail(ERR_CHECK, "%s: __metadata__: \"%.100s\" is not a string", f->path,
                            key);
        TRY(arena_string(a, key, &p->key));
        TRY(arena_string(a, json_string_value(value), &p->value));
    }
    return OK;
}

/* ---- all entries ---- */

static int by_offset(const void *x, const void *y)
{
    const StTensor *a = x, *b = y;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1; /* empty tensors first */
    return strcmp(a->name, b->name);
}

static Err check_offsets(const StFile *f)
{
    int64_t end = 0;
    for (int i = 0; i < f->n; i++) {
        const StTensor *t = &f->tensor[i];
        if (t->at != end)
            return err_fail(ERR_CHECK,
                            "%s: tensor \"%.100s\" begins at byte %lld of the data, the tensor "
                            "before it ends at %lld: %s",
                            f->path, t->name, (long long)t->at, (long long)end,
                            t->at < end ? "they overlap" : "there is a hole");
        end += t->bytes;
    }
    if (end != f->data_bytes)
        return err_fail(
            ERR_CHECK,
            "%s: %lld bytes of data, but tensors end at %lld: the rest belongs to no tensor",
            f->path, (long long)f->data_bytes, (long long)end);
    return OK;
}

static Err read_entries(const json_t *root, Arena *a, StFile *f)
{
    const char *key;
    json_t *value;
    TRY(ARENA_NEW(a, json_object_size(root), &f->tensor));
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0)
            TRY(read_metadata(value, a, f));
        else
            TRY(read_entry(f, key, value, a, &f->tensor[f->n++]));
    }
    if (f->n > 1) qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_offset);
    return check_offsets(f);
}

/* Returns the offset of the data, after checking that it is inside of the file. */
static Err read_length(const char *path, const unsigned char *head, int64_t file_bytes,
                       int64_t *data_at)
{
    uint64_t n = 0;
    if (file_bytes < LENGTH_BYTES)
        return err_fail(ERR_CHECK,
                        "%s: truncated: %lld bytes, and the first 8 are the header's length", path,
                        (long long)file_bytes);
    for (int i = 0; i < LENGTH_BYTES; i++) n |= (uint64_t)head[i] << 8 * i;
    if (n > MAX_ST_HEADER_BYTES)
        return err_fail(ERR_CHECK,
                        "%s: a header of %llu bytes; the format allows %d. It is damaged, or no "
                        "safetensors file",
                        path, (unsigned long long)n, MAX_ST_HEADER_BYTES);
    if ((int64_t)n > file_bytes - LENGTH_BYTES)
        return err_fail(ERR_CHECK, "%s: truncated: a header of %llu bytes in a file of %lld", path,
                        (unsigned long long)n, (long long)file_bytes);
    *data_at = LENGTH_BYTES + (int64_t)n;
    return OK;
}

Err st_parse(const char *path, const void *head, size_t bytes, int64_t file_bytes, Arena *a,
             StFile *out)
{
    StFile f = {0};
    json_t *root;
    TRY(arena_string(a, path, &f.path));
    TRY(read_length(path, head, bytes < LENGTH_BYTES ? (int64_t)bytes : file_bytes, &f.data_at));
    if ((size_t)f.data_at > bytes)
        return err_fail(ERR_CHECK, "%s: truncated: %zu bytes of a header of %lld", path, bytes,
                        (long long)f.data_at);
    const size_t n = (size_t)f.data_at - LENGTH_BYTES;
    const char *text = (const char *)head + LENGTH_BYTES;
    if (n == 0 || text[0] != '{')
        return err_fail(ERR_CHECK, "%s: the header does not begin with {", path);
    f.data_bytes = file_bytes - f.data_at;
    f.header_hash = hash_bytes(head, (size_t)f.data_at);
    TRY(strict_parse(path, text, n, MAX_DEPTH, &root));
    const Err err = read_entries(root, a, &f);
    json_decref(root);
    TRY(err);
    *out = f;
    return OK;
}

/* Reads the header into an arena of its size. A save reads headers too, and must not need more
 * addresses than that at its end. */
static Err read_open(const char *path, int fd, Arena *a, StFile *out)
{
    int64_t bytes, data_at;
    unsigned char first[LENGTH_BYTES] = {0};
    void *head;
    Arena temp;
    TRY(disk_length(fd, path, &bytes));
    TRY(disk_read(fd, path, 0, first, bytes < LENGTH_BYTES ? (size_t)bytes : LENGTH_BYTES));
    TRY(read_length(path, first, bytes, &data_at));
    TRY(arena_open(&temp, "safetensors header", (size_t)data_at));
    Err err = arena_push(&temp, (size_t)data_at, &head);
    if (err == OK) err = disk_read(fd, path, 0, head, (size_t)data_at);
    if (err == OK) err = st_parse(path, head, (size_t)data_at, bytes, a, out);
    arena_close(&temp);
    return err;
}

Err st_read(const char *path, Arena *a, StFile *out)
{
    int fd;
    TRY(disk_open(path, &fd));
    const Err err = read_open(path, fd, a, out);
    disk_close(fd);
    return err;
}

const StTensor *st_find(const StFile *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
    return NULL;
}

const char *st_meta(const StFile *f, const char *key)
{
    for (int i = 0; i < f->n_pairs; i++)
        if (strcmp(f->pair[i].key, key) == 0) return f->pair[i].value;
    return NULL;
}
