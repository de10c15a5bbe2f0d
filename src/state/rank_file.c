/* rank_file.c -- writes and reads the header of a rank's file.
 *
 *     parts   -> names "NAME.ROLE@7,0", shapes, offsets, hashes -> st_header
 *     st_read -> names -> tensor and origin, shape -> box       -> parts */
#include <stdlib.h>
#include <string.h>
#include "state/hash.h"
#include "state/rank_file.h"
#include "state/safetensors.h"

enum { ORIGIN_BYTES = 24 * MAX_DIMS, NUMBER_BYTES = 24, N_PAIRS = 5 };

static const char format_name[] = "sheaf checkpoint 1";

void rank_file_name(int rank, char *out)
{
    snprintf(out, RANK_FILE_NAME_BYTES, "rank-%05d.safetensors", rank);
}

int64_t rank_file_part_bytes(const StateTensors *t, const ManifestPart *p)
{
    return box_count(&p->box) * (int64_t)dtype_bytes(t->tensor[p->tensor].dtype);
}

int64_t rank_file_part_chunks(const StateTensors *t, const ManifestPart *p)
{
    return chunk_count(&p->box, CHUNK_BYTES / (int64_t)dtype_bytes(t->tensor[p->tensor].dtype));
}

/* ---- writing ---- */

static void origin_text(const Box *box, char *out)
{
    size_t n = 0;
    out[0] = '\0';
    for (int d = 0; d < box->ndim; d++)
        n += (size_t)snprintf(out + n, ORIGIN_BYTES - n, "%s%lld", d ? "," : "",
                              (long long)box->lo[d]);
}

static Err tensor_of(const StateTensors *t, const ManifestPart *p, Arena *temp, StTensor *out)
{
    const StateTensor *of = &t->tensor[p->tensor];
    char origin[ORIGIN_BYTES];
    StTensor x = {.type = st_type_of(of->dtype),
                  .ndim = p->box.ndim,
                  .at = out->at,
                  .bytes = rank_file_part_bytes(t, p)};
    for (int d = 0; d < x.ndim; d++) x.n[d] = p->box.hi[d] - p->box.lo[d];
    origin_text(&p->box, origin);
    Text name = text_in(temp);
    text_add(&name, "%s.%s@%s", of->name, state_role_name(of->role), origin);
    TRY(text_done(&name, &x.name));
    *out = x;
    return OK;
}

/* Parts without hashes get zeros: the length is the same. */
static Err hashes_text(const StateTensors *t, const RankFile *f, Arena *temp, const char **out)
{
    int64_t chunks = 0;
    char *text;
    for (int64_t i = 0; i < f->n; i++) chunks += rank_file_part_chunks(t, &f->part[i]);
    TRY(ARENA_NEW(temp, chunks * (HASH_DIGITS + 1) + 1, &text));
    char *at = text;
    for (int64_t i = 0; i < f->n; i++) {
        const int64_t n = rank_file_part_chunks(t, &f->part[i]);
        for (int64_t k = 0; k < n; k++) {
            if (at != text) *at++ = ' ';
            hash_digits(f->part[i].hash ? f->part[i].hash[k] : 0, at);
            at += HASH_DIGITS;
        }
    }
    *out = text;
    return OK;
}

/* Temporary values stay in the arena below the header: one of its own would have to be reserved
 * during a save, when it is too late to find that it cannot be. */
static Err make_header(const StateTensors *t, const RankFile *f, Arena *a, const char **head,
                       size_t *bytes)
{
    char step[NUMBER_BYTES], rank[NUMBER_BYTES], chunk[NUMBER_BYTES];
    StPair pair[N_PAIRS] = {{"format", format_name},
                            {"step", step},
                            {"rank", rank},
                            {"chunk_bytes", chunk},
                            {"hashes", NULL}};
    StFile st = {.path = "a rank's file", .n = (int)f->n, .n_pairs = N_PAIRS, .pair = pair};
    snprintf(step, sizeof step, "%lld", (long long)f->step);
    snprintf(rank, sizeof rank, "%d", f->rank);
    snprintf(chunk, sizeof chunk, "%d", CHUNK_BYTES);
    TRY(hashes_text(t, f, a, &pair[N_PAIRS - 1].value));
    TRY(ARENA_NEW(a, f->n, &st.tensor));
    for (int64_t i = 0; i < f->n; i++) {
        st.tensor[i].at = st.data_bytes;
        TRY(tensor_of(t, &f->part[i], a, &st.tensor[i]));
        st.data_bytes += st.tensor[i].bytes;
    }
    return st_header(&st, a, head, bytes);
}

Err rank_file_layout(const StateTensors *t, RankFile *f, Arena *temp)
{
    const char *head;
    size_t bytes;
    const size_t mark = arena_mark(temp);
    TRY(make_header(t, f, temp, &head, &bytes));
    arena_rewind(temp, mark);
    f->data_at = (int64_t)bytes;
    f->bytes = f->data_at;
    for (int64_t i = 0; i < f->n; i++) {
        f->part[i].at = f->bytes;
        f->bytes += rank_file_part_bytes(t, &f->part[i]);
    }
    return OK;
}

Err rank_file_header(const StateTensors *t, const RankFile *f, Arena *a, const char **head,
                     size_t *bytes)
{
    TRY(make_header(t, f, a, head, bytes));
    MUST((int64_t)*bytes == f->data_at, "a header of %zu bytes where %lld were kept for it", *bytes,
         (long long)f->data_at);
    return OK;
}

/* ---- reading ---- */

static Err fail_entry(const char *path, const StTensor *x, const char *why)
{
    return err_fail(ERR_CHECK, "%s: \"%.100s\" %s", path, x->name, why);
}

/* Returns the tensor with that name and role. The search begins at `hint`, since files follow the
 * tensors' order. */
static int find_tensor(const StateTensors *t, const char *name, size_t name_bytes, StateRole role,
                       int hint)
{
    for (int i = 0; i < t->n; i++) {
        const int k = (hint + i) % t->n;
        const StateTensor *x = &t->tensor[k];
        if (x->role == role && strlen(x->name) == name_bytes &&
            memcmp(x->name, name, name_bytes) == 0)
            return k;
    }
    return -1;
}

/* Parses "NAME.ROLE@ORIGIN": the tensor, and the text of the origin. */
static Err read_name(const char *path, const StateTensors *t, const StTensor *x, int hint,
                     int *tensor, const char **origin)
{
    char word[16];
    const char *at = strrchr(x->name, '@'), *dot = at;
    while (dot && dot > x->name && *dot != '.') dot--;
    if (!at || *dot != '.' || (size_t)(at - dot) > sizeof word)
        return fail_entry(path, x, "is not NAME.ROLE@ORIGIN, as a rank's file has it");
    snprintf(word, sizeof word, "%.*s", (int)(at - dot - 1), dot + 1);
    const int role = state_role_of(word);
    if (role < 0) return fail_entry(path, x, "has an unknown role");
    *tensor = find_tensor(t, x->name, (size_t)(dot - x->name), (StateRole)role, hint);
    if (*tensor < 0) return fail_entry(path, x, "is not a tensor of this job");
    *origin = at + 1;
    return OK;
}

static Err read_part(const char *path, const StateTensors *t, const StTensor *x, int hint,
                     ManifestPart *out)
{
    const char *origin;
    char canonical[ORIGIN_BYTES];
    ManifestPart p = {.box = {.ndim = x->ndim}};
    TRY(read_name(path, t, x, hint, &p.tensor, &origin));
    const StateTensor *of = &t->tensor[p.tensor];
    if (x->ndim != of->shape.ndim || x->type != st_type_of(of->dtype))
        return fail_entry(path, x, "does not have the dims and the dtype of its tensor");
    const char *at = origin;
    for (int d = 0; d < x->ndim; d++) {
        char *end;
        const long long lo = strtoll(at, &end, 10);
        if (lo < 0 || lo > of->shape.n[d] || x->n[d] > of->shape.n[d] - lo || x->n[d] == 0)
            return fail_entry(path, x, "is outside of its tensor, or is empty");
        p.box.lo[d] = lo;
        p.box.hi[d] = lo + x->n[d];
        at = end + (*end == ',');
    }
    origin_text(&p.box, canonical); /* only one form is valid */
    if (strcmp(canonical, origin) != 0) return fail_entry(path, x, "has a malformed origin");
    *out = p;
    return OK;
}

static Err read_number(const char *path, const StFile *st, const char *key, int64_t *out)
{
    char canonical[NUMBER_BYTES];
    const char *text = st_meta(st, key);
    const long long value = text ? strtoll(text, NULL, 10) : -1;
    snprintf(canonical, sizeof canonical, "%lld", value);
    if (!text || value < 0 || strcmp(text, canonical) != 0)
        return err_fail(ERR_CHECK, "%s: \"%s\" of __metadata__ is no count", path, key);
    *out = value;
    return OK;
}

/* Reads the hashes of all parts, in order. */
static Err read_hashes(const char *path, const StateTensors *t, const char *text, RankFile *f,
                       Arena *a)
{
    int64_t chunks = 0;
    uint64_t *hash;
    for (int64_t i = 0; i < f->n; i++) chunks += rank_file_part_chunks(t, &f->part[i]);
    const size_t length = text ? strlen(text) : 0;
    if (!text || (int64_t)(length + 1) != chunks * (HASH_DIGITS + 1))
        return err_fail(ERR_CHECK, "%s: \"hashes\" of __metadata__ are not %lld hashes", path,
                        (long long)chunks);
    TRY(ARENA_NEW(a, chunks, &hash));
    for (int64_t k = 0; k < chunks; k++) {
        const char *digits = text + k * (HASH_DIGITS + 1);
        const char after = digits[HASH_DIGITS];
        if (!hash_of_digits(digits, &hash[k]) || after != (k + 1 < chunks ? ' ' : '\0'))
            return err_fail(ERR_CHECK, "%s: hash %lld of __metadata__ is malformed", path,
                            (long long)k);
    }
    for (int64_t i = 0; i < f->n; i++) {
        f->part[i].hash = hash;
        hash += rank_file_part_chunks(t, &f->part[i]);
    }
    return OK;
}

static Err read_numbers(const char *path, const StFile *st, RankFile *f)
{
    int64_t rank, chunk;
    const char *format = st_meta(st, "format");
    if (!format || strcmp(format, format_name) != 0)
        return err_fail(ERR_CHECK, "%s: its format is \"%.40s\", not \"%s\"", path,
                        format ? format : "", format_name);
    TRY(read_number(path, st, "step", &f->step));
    TRY(read_number(path, st, "rank", &rank));
    TRY(read_number(path, st, "chunk_bytes", &chunk));
    if (rank > INT32_MAX || chunk != CHUNK_BYTES)
        return err_fail(ERR_CHECK, "%s: rank %lld, chunks of %lld bytes; chunks have %d", path,
                        (long long)rank, (long long)chunk, CHUNK_BYTES);
    f->rank = (int)rank;
    return OK;
}

Err rank_file_read(const char *path, const StateTensors *t, Arena *a, RankFile *out)
{
    StFile st;
    TRY(st_read(path, a, &st));
    RankFile f = {.n = st.n,
                  .data_at = st.data_at,
                  .bytes = st.data_at + st.data_bytes,
                  .header_hash = st.header_hash};
    TRY(read_numbers(path, &st, &f));
    TRY(ARENA_NEW(a, f.n, &f.part));
    for (int64_t i = 0; i < f.n; i++) {
        TRY(read_part(path, t, &st.tensor[i], i ? f.part[i - 1].tensor : 0, &f.part[i]));
        f.part[i].at = st.data_at + st.tensor[i].at;
    }
    TRY(read_hashes(path, t, st_meta(&st, "hashes"), &f, a));
    *out = f;
    return OK;
}
