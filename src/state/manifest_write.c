/* manifest_write.c -- writes manifest.json: one line per tensor, file and part.
 *
 *     {
 *     "version": 1,
 *     ...
 *     "parts": [
 *     {"tensor": 0, "file": 0, "lo": [0, 0], "hi": [7, 8], "at": 640, "hashes": "0123456789abcdef"}
 *     ],
 *     "hash": "0123456789abcdef"          XXH3 of all bytes before this line; only the brace and a
 *     }                                   newline follow */
#include <string.h>
#include "state/hash.h"
#include "state/manifest.h"
#include "state/rank_file.h"
#include "state/strict.h"

static const char tail_before[] = "\"hash\": \"", tail_after[] = "\"\n}\n";
enum {
    BEFORE = sizeof tail_before - 1,
    AFTER = sizeof tail_after - 1,
    TAIL = BEFORE + HASH_DIGITS + AFTER
};

static void add_hash(Text *t, uint64_t hash)
{
    char digits[HASH_DIGITS];
    hash_digits(hash, digits);
    text_add(t, "%.*s", HASH_DIGITS, digits);
}

static void add_number(Text *t, const char *name, int64_t x)
{
    text_add(t, "\"%s\": %lld,\n", name, (long long)x);
}

static void add_word(Text *t, const char *name, const char *word)
{
    text_add(t, "\"%s\": ", name);
    strict_quote(t, word);
    text_add(t, ",\n");
}

static void add_scalars(Text *t, const StateScalars *s)
{
    add_number(t, "step", s->step);
    add_number(t, "cursor", s->cursor);
    add_number(t, "tokens", s->tokens);
    add_number(t, "skipped", s->skipped);
    text_add(t, "\"seed\": \"");
    add_hash(t, s->seed);
    text_add(t, "\",\n\"data\": \"");
    add_hash(t, s->data);
    text_add(t, "\",\n");
    add_number(t, "seq_len", s->seq_len);
    add_number(t, "batch", s->batch);
    text_add(t, "\"pack\": %s,\n", s->pack ? "true" : "false");
    add_word(t, "optim", s->optim);
    add_word(t, "dtype", s->dtype);
    add_word(t, "device", s->device);
    add_word(t, "kernels", s->kernels);
    add_word(t, "config", s->config);
    add_word(t, "model", s->model);
}

static void add_list(Text *t, const char *name, const int64_t *n, int count)
{
    text_add(t, "\"%s\": [", name);
    for (int i = 0; i < count; i++) text_add(t, "%s%lld", i ? ", " : "", (long long)n[i]);
    text_add(t, "]");
}

static void add_tensor(Text *t, const StateTensor *x)
{
    text_add(t, "{\"name\": ");
    strict_quote(t, x->name);
    text_add(t, ", \"role\": \"%s\", \"dtype\": \"%s\", ", state_role_name(x->role),
             dtype_name(x->dtype));
    add_list(t, "shape", x->shape.n, x->shape.ndim);
    text_add(t, "}");
}

static void add_file(Text *t, const ManifestFile *f)
{
    text_add(t, "{\"name\": ");
    strict_quote(t, f->name);
    text_add(t, ", \"bytes\": %lld, \"header\": \"", (long long)f->bytes);
    add_hash(t, f->header_hash);
    text_add(t, "\"}");
}

static void add_part(Text *t, const StateTensors *tensors, const ManifestPart *p)
{
    const int64_t chunks = rank_file_part_chunks(tensors, p);
    text_add(t, "{\"tensor\": %d, \"file\": %d, ", p->tensor, p->file);
    add_list(t, "lo", p->box.lo, p->box.ndim);
    text_add(t, ", ");
    add_list(t, "hi", p->box.hi, p->box.ndim);
    text_add(t, ", \"at\": %lld, \"hashes\": \"", (long long)p->at);
    for (int64_t i = 0; i < chunks; i++) {
        if (i) text_add(t, " ");
        add_hash(t, p->hash[i]);
    }
    text_add(t, "\"}");
}

Err manifest_text(const Manifest *m, Arena *a, const char **text, size_t *bytes)
{
    Text t = text_in(a);
    text_add(&t, "{\n");
    add_number(&t, "version", MANIFEST_VERSION);
    add_word(&t, "format", "sheaf checkpoint");
    add_scalars(&t, &m->scalars);
    add_number(&t, "chunk_bytes", CHUNK_BYTES);
    text_add(&t, "\"tensors\": [");
    for (int i = 0; i < m->tensors.n; i++) {
        text_add(&t, i ? ",\n" : "\n");
        add_tensor(&t, &m->tensors.tensor[i]);
    }
    text_add(&t, "\n],\n\"files\": [");
    for (int i = 0; i < m->n_files; i++) {
        text_add(&t, i ? ",\n" : "\n");
        add_file(&t, &m->file[i]);
    }
    text_add(&t, "\n],\n\"parts\": [");
    for (int64_t i = 0; i < m->n_parts; i++) {
        text_add(&t, i ? ",\n" : "\n");
        add_part(&t, &m->tensors, &m->part[i]);
    }
    text_add(&t, "\n],\n");
    if (t.err == OK) {
        const uint64_t hash = hash_bytes(t.at, t.length);
        text_add(&t, "%s", tail_before);
        add_hash(&t, hash);
        text_add(&t, "%s", tail_after);
    }
    *bytes = t.length;
    return text_done(&t, text);
}

bool manifest_text_hash(const char *text, size_t bytes, uint64_t *stored, uint64_t *actual)
{
    if (bytes < TAIL) return false;
    const char *tail = text + bytes - TAIL;
    if (memcmp(tail, tail_before, BEFORE) != 0 ||
        memcmp(tail + BEFORE + HASH_DIGITS, tail_after, AFTER) != 0 ||
        !hash_of_digits(tail + BEFORE, stored))
        return false;
    *actual = hash_bytes(text, bytes - TAIL);
    return true;
}
