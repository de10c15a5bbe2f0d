/* manifest_check.c -- checks that boxes tile their tensors exactly once, and that parts fill
 * their files.
 *
 * A box is a sum of signed corners: its indicator function is the prefix sum, along every dim, of
 * +1 at its first corner, -1 where one dim ends, +1 where two do, and so on. Boxes tile a tensor
 * exactly if the sum of their corners is the corners of the tensor:
 *
 *     A A B     A +(0,0) -(0,2) -(2,0) +(2,2)      B +(0,2) -(0,3) -(2,2) +(2,3)
 *     A A B     together  +(0,0) -(0,3) -(2,0) +(2,3)      = the corners of [2, 3]
 *
 * No pair of boxes is compared: n boxes of d dims need a sort of n 2^d corners. The first remaining
 * corner in row-major order is the first element that is in too many boxes (+) or in none (-),
 * because nothing before it contributes to the prefix sum there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "state/disk.h"
#include "state/hash.h"
#include "state/rank_file.h"
#include "state/safetensors.h"

typedef struct {
    int64_t x[MAX_DIMS]; /* 0 past the tensor's dims */
    int64_t sign;
} BoxCorner;

static int by_corner(const void *a, const void *b)
{
    const int64_t *x = ((const BoxCorner *)a)->x, *y = ((const BoxCorner *)b)->x;
    for (int d = 0; d < MAX_DIMS; d++)
        if (x[d] != y[d]) return x[d] < y[d] ? -1 : 1;
    return 0;
}

static BoxCorner *add_corners(BoxCorner *out, const Box *box, int64_t sign)
{
    for (unsigned ends = 0; ends < 1u << box->ndim; ends++) {
        BoxCorner c = {.sign = sign};
        for (int d = 0; d < box->ndim; d++) {
            const bool end = ends >> d & 1;
            c.x[d] = end ? box->hi[d] : box->lo[d];
            if (end) c.sign = -c.sign;
        }
        *out++ = c;
    }
    return out;
}

static Err fail_uncovered(const Manifest *m, const StateTensor *t, const BoxCorner *c, int64_t sum)
{
    char at[24 * MAX_DIMS] = "";
    size_t n = 0;
    for (int d = 0; d < t->shape.ndim; d++)
        n += (size_t)snprintf(at + n, sizeof at - n, "%s%lld", d ? ", " : "", (long long)c->x[d]);
    return err_fail(ERR_CHECK,
                    "%s: element (%s) of the %s of %.100s is in %s: parts must tile each tensor "
                    "exactly once",
                    m->dir, at, state_role_name(t->role), t->name,
                    sum > 0 ? "more than one part" : "no part");
}

/* Checks that these parts tile the tensor. */
static Err check_cover(const Manifest *m, int tensor, const ManifestPart *part, int64_t n,
                       Arena *temp)
{
    const StateTensor *t = &m->tensors.tensor[tensor];
    Box whole = {.ndim = t->shape.ndim};
    BoxCorner *corner, *end;
    for (int d = 0; d < whole.ndim; d++) whole.hi[d] = t->shape.n[d];
    if (box_count(&whole) == 0 && n == 0) return OK;
    TRY(ARENA_NEW(temp, (n + 1) << whole.ndim, &corner));
    end = add_corners(corner, &whole, -1);
    for (int64_t i = 0; i < n; i++) end = add_corners(end, &part[i].box, 1);
    qsort(corner, (size_t)(end - corner), sizeof *corner, by_corner);
    for (const BoxCorner *c = corner, *next; c < end; c = next) {
        int64_t sum = 0;
        for (next = c; next < end && by_corner(c, next) == 0; next++) sum += next->sign;
        if (sum != 0) return fail_uncovered(m, t, c, sum);
    }
    return OK;
}

int manifest_part_order(const void *a, const void *b)
{
    const ManifestPart *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d]) return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

static Err check_covers(const Manifest *m, Arena *temp)
{
    int64_t at = 0;
    for (int64_t i = 1; i < m->n_parts; i++)
        if (manifest_part_order(&m->part[i - 1], &m->part[i]) > 0)
            return err_fail(ERR_CHECK, "%s: part %lld is out of order", m->dir, (long long)i);
    for (int t = 0; t < m->tensors.n; t++) {
        const size_t mark = arena_mark(temp);
        int64_t n = 0;
        while (at + n < m->n_parts && m->part[at + n].tensor == t) n++;
        TRY(check_cover(m, t, m->part + at, n, temp));
        arena_rewind(temp, mark);
        at += n;
    }
    return OK;
}

/* ---- files ---- */

typedef struct {
    int file;
    int64_t at, bytes;
} FileRange;

static int by_range(const void *a, const void *b)
{
    const FileRange *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Checks that the parts of a file are contiguous from the first one, after the header, to
 * its end. */
static Err check_file_ranges(const Manifest *m, int f, const FileRange *range, int64_t n)
{
    const ManifestFile *file = &m->file[f];
    if (n == 0) return err_fail(ERR_CHECK, "%s: no part is in %s", m->dir, file->name);
    int64_t end = range[0].at;
    if (end > MAX_ST_HEADER_BYTES + 8)
        return err_fail(ERR_CHECK,
                        "%s: the first part in %s is at byte %lld; no header is that long", m->dir,
                        file->name, (long long)end);
    for (int64_t i = 0; i < n; i++) {
        if (range[i].at != end)
            return err_fail(ERR_CHECK, "%s: parts in %s %s at byte %lld", m->dir, file->name,
                            range[i].at < end ? "overlap" : "leave a hole",
                            (long long)(range[i].at < end ? range[i].at : end));
        end += range[i].bytes;
    }
    if (end == file->bytes) return OK;
    return err_fail(ERR_CHECK, "%s: parts in %s end at byte %lld of %lld", m->dir, file->name,
                    (long long)end, (long long)file->bytes);
}

static Err check_ranges(const Manifest *m, Arena *temp)
{
    FileRange *range;
    int64_t at = 0;
    TRY(ARENA_NEW(temp, m->n_parts, &range));
    for (int64_t k = 0; k < m->n_parts; k++)
        range[k] = (FileRange){m->part[k].file, m->part[k].at,
                               rank_file_part_bytes(&m->tensors, &m->part[k])};
    if (m->n_parts > 1) qsort(range, (size_t)m->n_parts, sizeof *range, by_range);
    for (int f = 0; f < m->n_files; f++) {
        int64_t n = 0;
        while (at + n < m->n_parts && range[at + n].file == f) n++;
        TRY(check_file_ranges(m, f, range + at, n));
        at += n;
    }
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const StateTensor *x = *(const StateTensor *const *)a, *y = *(const StateTensor *const *)b;
    const int names = strcmp(x->name, y->name);
    return names ? names : (int)x->role - (int)y->role;
}

static Err check_names(const Manifest *m, Arena *temp)
{
    const StateTensor **t;
    TRY(ARENA_NEW(temp, m->tensors.n, &t));
    for (int i = 0; i < m->tensors.n; i++) t[i] = &m->tensors.tensor[i];
    if (m->tensors.n > 1) qsort(t, (size_t)m->tensors.n, sizeof *t, by_name);
    for (int i = 1; i < m->tensors.n; i++)
        if (by_name(&t[i - 1], &t[i]) == 0)
            return err_fail(ERR_CHECK, "%s: the %s of %.100s is listed twice", m->dir,
                            state_role_name(t[i]->role), t[i]->name);
    return OK;
}

Err manifest_check(const Manifest *m, Arena *temp)
{
    TRY(check_names(m, temp));
    TRY(check_covers(m, temp));
    return check_ranges(m, temp);
}

static Err check_file(const Manifest *m, const ManifestFile *f, int64_t head_bytes, Arena *temp)
{
    char path[DISK_PATH_BYTES];
    int fd;
    int64_t bytes = 0;
    void *head;
    TRY(disk_path(m->dir, f->name, path));
    TRY(arena_push(temp, (size_t)head_bytes, &head));
    TRY(disk_open(path, &fd));
    Err err = disk_length(fd, path, &bytes);
    if (err == OK && bytes != f->bytes)
        err = err_fail(ERR_CHECK, "%s: damaged: %lld bytes, the manifest has %lld", path,
                       (long long)bytes, (long long)f->bytes);
    if (err == OK) err = disk_read(fd, path, 0, head, (size_t)head_bytes);
    disk_close(fd);
    TRY(err);
    const uint64_t hash = hash_bytes(head, (size_t)head_bytes);
    if (hash != f->header_hash)
        return err_fail(
            ERR_CHECK,
            "%s: damaged: the hash of its header, %lld bytes, is %016llx, the manifest has %016llx",
            path, (long long)head_bytes, (unsigned long long)hash,
            (unsigned long long)f->header_hash);
    return OK;
}

Err manifest_check_files(const Manifest *m, Arena *temp)
{
    int64_t *head;
    const size_t mark = arena_mark(temp);
    TRY(ARENA_NEW(temp, m->n_files, &head));
    for (int i = 0; i < m->n_files; i++) head[i] = m->file[i].bytes;
    for (int64_t i = 0; i < m->n_parts; i++)
        if (m->part[i].at < head[m->part[i].file]) head[m->part[i].file] = m->part[i].at;
    for (int i = 0; i < m->n_files; i++) {
        const size_t of_file = arena_mark(temp);
        TRY(check_file(m, &m->file[i], head[i], temp));
        arena_rewind(temp, of_file);
    }
    arena_rewind(temp, mark);
    return OK;
}
