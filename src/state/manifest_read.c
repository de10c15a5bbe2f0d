/* manifest_read.c -- parses manifest.json and trusts nothing in it: first its own hash, then every
 * member by name and range.
 *
 * Allocations are proportional to the length of the file: a list is as long as its text, and hashes
 * are counted in the text before their memory is allocated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "state/disk.h"
#include "state/hash.h"
#include "state/manifest.h"
#include "state/rank_file.h"
#include "state/strict.h"

enum { MAX_DEPTH = 4, MAX_NAME_BYTES = 255 };

/* The manifest being read, and its path for messages. */
typedef struct {
    const char *path;
    Arena *arena;
    Manifest *m;
} ManifestReader;

static Err wrong(const ManifestReader *r, const char *what, long long i, const char *why)
{
    return err_fail(ERR_CHECK, "%s: %s %lld: %s", r->path, what, i, why);
}

static Err read_number(const ManifestReader *r, const json_t *o, const char *key, int64_t *out)
{
    if (strict_int(json_object_get(o, key), 0, INT64_MAX, out)) return OK;
    return err_fail(ERR_CHECK, "%s: \"%s\" is no count", r->path, key);
}

static Err read_word(const ManifestReader *r, const json_t *o, const char *key, const char **out)
{
    const char *word = json_string_value(json_object_get(o, key));
    if (!word) return err_fail(ERR_CHECK, "%s: \"%s\" is no text", r->path, key);
    return arena_string(r->arena, word, out);
}

static Err read_hash(const ManifestReader *r, const json_t *o, const char *key, uint64_t *out)
{
    const json_t *x = json_object_get(o, key);
    if (json_string_length(x) == HASH_DIGITS && hash_of_digits(json_string_value(x), out))
        return OK;
    return err_fail(ERR_CHECK, "%s: \"%s\" is not 16 digits of hexadecimal, lower case", r->path,
                    key);
}

static Err read_scalars(const ManifestReader *r, const json_t *o)
{
    StateScalars *s = &r->m->scalars;
    const json_t *pack = json_object_get(o, "pack");
    TRY(read_number(r, o, "step", &s->step));
    TRY(read_number(r, o, "cursor", &s->cursor));
    TRY(read_number(r, o, "tokens", &s->tokens));
    TRY(read_number(r, o, "skipped", &s->skipped));
    if (s->skipped > s->step)
        return err_fail(ERR_CHECK, "%s: %lld skipped updates of %lld steps", r->path,
                        (long long)s->skipped, (long long)s->step);
    TRY(read_hash(r, o, "seed", &s->seed));
    TRY(read_hash(r, o, "data", &s->data));
    TRY(read_number(r, o, "seq_len", &s->seq_len));
    TRY(read_number(r, o, "batch", &s->batch));
    if (!json_is_boolean(pack))
        return err_fail(ERR_CHECK, "%s: \"pack\" is neither true nor false", r->path);
    s->pack = json_is_true(pack);
    TRY(read_word(r, o, "optim", &s->optim));
    TRY(read_word(r, o, "dtype", &s->dtype));
    TRY(read_word(r, o, "device", &s->device));
    TRY(read_word(r, o, "kernels", &s->kernels));
    TRY(read_word(r, o, "config", &s->config));
    return read_word(r, o, "model", &s->model);
}

/* Reads integers from 0 to INT64_MAX: `ndim` of them, or if that is -1 all of the list; *n:
 * their number. */
static bool read_list(const json_t *x, int ndim, int64_t *out, int *n)
{
    const size_t count = json_array_size(x);
    if (!json_is_array(x) || count > MAX_DIMS || (ndim >= 0 && (int)count != ndim)) return false;
    for (size_t d = 0; d < count; d++)
        if (!strict_int(json_array_get(x, d), 0, INT64_MAX, &out[d])) return false;
    *n = (int)count;
    return true;
}

static Err read_tensor(const ManifestReader *r, const json_t *o, long long i, StateTensor *out)
{
    static const char *const member[] = {"name", "role", "dtype", "shape"};
    TRY(strict_members(r->path, "a tensor", o, member, 4));
    const char *role = json_string_value(json_object_get(o, "role"));
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    TRY(read_word(r, o, "name", &out->name));
    if (!*out->name) return wrong(r, "tensor", i, "has no name");
    if (!role || state_role_of(role) < 0)
        return wrong(r, "tensor", i, "its role is not weight, moment1 or moment2");
    out->role = (StateRole)state_role_of(role);
    if (!dtype || (strcmp(dtype, "f32") != 0 && strcmp(dtype, "f64") != 0))
        return wrong(r, "tensor", i, "its dtype is neither f32 nor f64");
    out->dtype = strcmp(dtype, "f64") == 0 ? F64 : F32;
    if (!read_list(json_object_get(o, "shape"), -1, out->shape.n, &out->shape.ndim))
        return wrong(r, "tensor", i, "its shape is no list of a few counts");
    int64_t bytes = (int64_t)dtype_bytes(out->dtype);
    for (int d = 0; d < out->shape.ndim; d++)
        if (__builtin_mul_overflow(bytes, out->shape.n[d], &bytes))
            return wrong(r, "tensor", i, "its shape has more bytes than 2^63");
    return OK;
}

/* True for letters, digits, '-', '_' and '.', which must not be first: no name leads out of
 * the folder. */
static bool is_plain(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n <= MAX_NAME_BYTES && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

static Err read_file(const ManifestReader *r, const json_t *o, long long i, ManifestFile *out)
{
    static const char *const member[] = {"name", "bytes", "header"};
    TRY(strict_members(r->path, "a file", o, member, 3));
    TRY(read_word(r, o, "name", &out->name));
    if (!is_plain(out->name))
        return wrong(r, "file", i, "its name is not plain: letters, digits, - _ . and no folder");
    if (i > 0 && strcmp(out[-1].name, out->name) >= 0)
        return wrong(r, "file", i, "names are out of order, or one is listed twice");
    TRY(read_number(r, o, "bytes", &out->bytes));
    return read_hash(r, o, "header", &out->header_hash);
}

static Err read_hashes(const ManifestReader *r, const json_t *x, long long i, ManifestPart *p)
{
    const int64_t chunks = rank_file_part_chunks(&r->m->tensors, p);
    const char *text = json_string_value(x);
    uint64_t *hash;
    if (!text || (int64_t)((json_string_length(x) + 1) / (HASH_DIGITS + 1)) != chunks ||
        (json_string_length(x) + 1) % (HASH_DIGITS + 1) != 0)
        return wrong(r, "part", i, "has not one hash for each of its chunks");
    TRY(ARENA_NEW(r->arena, chunks, &hash));
    for (int64_t k = 0; k < chunks; k++) {
        const char *digits = text + k * (HASH_DIGITS + 1);
        if (!hash_of_digits(digits, &hash[k]) ||
            digits[HASH_DIGITS] != (k + 1 < chunks ? ' ' : '\0'))
            return wrong(r, "part", i, "one of its hashes is malformed");
    }
    p->hash = hash;
    return OK;
}

static Err read_part(const ManifestReader *r, const json_t *o, long long i, ManifestPart *out)
{
    static const char *const member[] = {"tensor", "file", "lo", "hi", "at", "hashes"};
    const Manifest *m = r->m;
    int64_t tensor, file;
    TRY(strict_members(r->path, "a part", o, member, 6));
    if (!strict_int(json_object_get(o, "tensor"), 0, m->tensors.n - 1, &tensor) ||
        !strict_int(json_object_get(o, "file"), 0, m->n_files - 1, &file))
        return wrong(r, "part", i, "names a tensor or a file that does not exist");
    out->tensor = (int)tensor;
    out->file = (int)file;
    const StateTensor *t = &m->tensors.tensor[tensor];
    Box *b = &out->box;
    if (!read_list(json_object_get(o, "lo"), t->shape.ndim, b->lo, &b->ndim) ||
        !read_list(json_object_get(o, "hi"), t->shape.ndim, b->hi, &b->ndim))
        return wrong(r, "part", i, "lo or hi is not as many counts as its tensor has dims");
    for (int d = 0; d < b->ndim; d++)
        if (b->lo[d] >= b->hi[d] || b->hi[d] > t->shape.n[d])
            return wrong(r, "part", i, "its box is empty, or outside of its tensor");
    TRY(read_number(r, o, "at", &out->at));
    const int64_t bytes = rank_file_part_bytes(&m->tensors, out);
    if (out->at > m->file[file].bytes || bytes > m->file[file].bytes - out->at)
        return wrong(r, "part", i, "ends past the end of its file");
    return read_hashes(r, json_object_get(o, "hashes"), i, out);
}

static Err read_lists(const ManifestReader *r, const json_t *o)
{
    Manifest *m = r->m;
    const json_t *tensors = json_object_get(o, "tensors"), *files = json_object_get(o, "files"),
                 *parts = json_object_get(o, "parts");
    if (!json_is_array(tensors) || !json_is_array(files) || !json_is_array(parts))
        return err_fail(ERR_CHECK, "%s: tensors, files and parts are not all lists", r->path);
    const size_t n_tensors = json_array_size(tensors), n_files = json_array_size(files);
    TRY(ARENA_NEW(r->arena, n_tensors, &m->tensors.tensor));
    TRY(ARENA_NEW(r->arena, n_files, &m->file));
    TRY(ARENA_NEW(r->arena, json_array_size(parts), &m->part));
    for (; m->tensors.n < (int)n_tensors; m->tensors.n++)
        TRY(read_tensor(r, json_array_get(tensors, (size_t)m->tensors.n), m->tensors.n,
                        &m->tensors.tensor[m->tensors.n]));
    for (; m->n_files < (int)n_files; m->n_files++)
        TRY(read_file(r, json_array_get(files, (size_t)m->n_files), m->n_files,
                      &m->file[m->n_files]));
    for (; m->n_parts < (int64_t)json_array_size(parts); m->n_parts++)
        TRY(read_part(r, json_array_get(parts, (size_t)m->n_parts), m->n_parts,
                      &m->part[m->n_parts]));
    return OK;
}

static Err read_root(const ManifestReader *r, const json_t *o)
{
    static const char *const member[] = {
        "version", "format",      "step",    "cursor", "tokens", "skipped", "seed",    "data",
        "seq_len", "batch",       "pack",    "optim",  "dtype",  "device",  "kernels", "config",
        "model",   "chunk_bytes", "tensors", "files",  "parts",  "hash"};
    int64_t chunk;
    const char *format = json_string_value(json_object_get(o, "format"));
    TRY(strict_members(r->path, "it", o, member, sizeof member / sizeof *member));
    if (!format || strcmp(format, "sheaf checkpoint") != 0)
        return err_fail(ERR_CHECK, "%s: its format is not \"sheaf checkpoint\"", r->path);
    TRY(read_number(r, o, "chunk_bytes", &chunk));
    if (chunk != CHUNK_BYTES)
        return err_fail(ERR_CHECK, "%s: chunks of %lld bytes; this version has %d", r->path,
                        (long long)chunk, CHUNK_BYTES);
    TRY(read_scalars(r, o));
    return read_lists(r, o);
}

/* Checks the first member without reading more, since another version may differ in
 * everything after it. An undamaged manifest of another version is ERR_CONFIG, so that it is
 * not quarantined. */
static Err check_version(const char *path, const char *text, size_t bytes)
{
    char head[32];
    uint64_t stored, actual;
    int version;
    const int n = snprintf(head, sizeof head, "{\n\"version\": %d,\n", MANIFEST_VERSION);
    if (bytes >= (size_t)n && memcmp(text, head, (size_t)n) == 0) return OK;
    snprintf(head, sizeof head, "%.*s", bytes < 31 ? (int)bytes : 31, text);
    if (sscanf(head, "{ \"version\": %d", &version) == 1 && version != MANIFEST_VERSION &&
        manifest_text_hash(text, bytes, &stored, &actual) && stored == actual)
        return err_fail(ERR_CONFIG,
                        "%s: has version %d, and this program reads version %d; use the sheaf that "
                        "wrote it, or a newer one",
                        path, version, MANIFEST_VERSION);
    return err_fail(ERR_CHECK,
                    "%s: damaged: does not begin as a manifest of version %d, which this program "
                    "reads",
                    path, MANIFEST_VERSION);
}

Err manifest_parse(const char *dir, const char *text, size_t bytes, Arena *a, Manifest *out)
{
    char path[DISK_PATH_BYTES];
    uint64_t stored, actual;
    Manifest m = {0};
    json_t *root;
    TRY(disk_path(dir, "manifest.json", path));
    TRY(check_version(path, text, bytes));
    if (!manifest_text_hash(text, bytes, &stored, &actual))
        return err_fail(ERR_CHECK, "%s: damaged: it does not end in the hash of itself", path);
    if (stored != actual)
        return err_fail(ERR_CHECK, "%s: damaged: its hash is %016llx, the stored one is %016llx",
                        path, (unsigned long long)actual, (unsigned long long)stored);
    m.hash = actual;
    TRY(arena_string(a, dir, &m.dir));
    TRY(strict_parse(path, text, bytes, MAX_DEPTH, &root));
    const ManifestReader r = {path, a, &m};
    const Err err = read_root(&r, root);
    json_decref(root);
    TRY(err);
    const size_t mark = arena_mark(a);
    TRY(manifest_check(&m, a));
    arena_rewind(a, mark);
    *out = m;
    return OK;
}

/* Reads the whole file and appends a NUL. */
static Err read_text(const char *path, Arena *temp, const char **text, size_t *bytes)
{
    int64_t length = 0;
    void *buffer = NULL;
    int fd;
    TRY(disk_open(path, &fd));
    Err err = disk_length(fd, path, &length);
    if (err == OK && length > MAX_MANIFEST_BYTES)
        err = err_fail(ERR_CHECK, "%s: damaged: %lld bytes; a manifest has at most %d", path,
                       (long long)length, MAX_MANIFEST_BYTES);
    if (err == OK) err = arena_push(temp, (size_t)length + 1, &buffer);
    if (err == OK) err = disk_read(fd, path, 0, buffer, (size_t)length);
    disk_close(fd);
    TRY(err);
    ((char *)buffer)[length] = '\0';
    *text = buffer;
    *bytes = (size_t)length;
    return OK;
}

/* Checks that a folder named step-N contains step N: otherwise other files were put there. */
static Err check_name(const char *dir, const Manifest *m)
{
    long long step;
    int end = 0;
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    if (sscanf(name, "step-%lld%n", &step, &end) != 1 || name[end] || step == m->scalars.step)
        return OK;
    return err_fail(ERR_CHECK, "%s/manifest.json: is for step %lld, not for %s", dir,
                    (long long)m->scalars.step, name);
}

Err manifest_read(const char *dir, Arena *a, Manifest *out)
{
    char path[DISK_PATH_BYTES];
    Arena temp;
    const char *text;
    size_t bytes;
    TRY(disk_path(dir, "manifest.json", path));
    TRY(arena_open(&temp, "manifest", (size_t)2 * MAX_MANIFEST_BYTES));
    Err err = read_text(path, &temp, &text, &bytes);
    if (err == OK) err = manifest_parse(dir, text, bytes, a, out);
    if (err == OK) err = check_name(dir, out);
    arena_close(&temp);
    return err;
}
