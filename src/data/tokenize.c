/* tokenize.c -- encodes a file in rounds of parts: any free thread takes the next part; the parts
 * are written in order. */
#include "data/tokenize.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "data/jsonl.h"

enum { PART_BYTES = 1 << 18, PARTS_PER_THREAD = 8 };

struct TokenizePart {
    Bytes raw;
    const char *path; /* of the JSONL file; NULL: text */
    int64_t line;     /* JSONL: lines before the part */
    bool first, last; /* text: the part begins, ends its document */
    int thread;       /* its encoder encoded the part, and has its ids and document ends */
    int64_t from, to, first_end, n_ends;
    Err err;
    char why[400];
};

struct TokenizeThread {
    Encoder encoder;
    Arena ends; /* memory of an array: document ends, as indices of the encoder's ids */
    int64_t n_ends;
};

/* One round of the team. */
typedef struct {
    BulkTokenizer *z;
    _Atomic int next;
} Round;

static Err open_threads(BulkTokenizer *z)
{
    TRY(ARENA_NEW(&z->arena, z->settings.threads, &z->thread));
    TRY(ARENA_NEW(&z->arena, z->max_parts, &z->part));
    TRY(team_open(&z->team, z->settings.threads, NULL));
    for (int i = 0; i < z->settings.threads; i++) {
        TRY(encoder_open(&z->thread[i].encoder, z->settings.of));
        TRY(arena_open(&z->thread[i].ends, "ends of documents", ARENA_PLENTY));
    }
    return OK;
}

Err tokenize_open(BulkTokenizer *z, const TokenizeSettings *settings)
{
    *z = (BulkTokenizer){.settings = *settings, .max_parts = PARTS_PER_THREAD * settings->threads};
    if (!settings->part_bytes) z->settings.part_bytes = PART_BYTES;
    TRY(arena_open(&z->arena, "tokenize", (size_t)1 << 30));
    const Err err = open_threads(z);
    if (err != OK) tokenize_close(z);
    return err;
}

void tokenize_close(BulkTokenizer *z)
{
    team_close(z->team);
    for (int i = 0; i < z->settings.threads && z->thread; i++) {
        encoder_close(&z->thread[i].encoder);
        arena_close(&z->thread[i].ends);
    }
    arena_close(&z->arena);
    z->team = NULL;
    z->thread = NULL;
}

static Err begin_document(const BulkTokenizer *z, Encoder *e)
{
    if (z->settings.first >= 0) TRY(encoder_add_id(e, z->settings.first));
    return encoder_begin(e);
}

static Err end_document(const BulkTokenizer *z, TokenizeThread *t)
{
    Encoder *e = &t->encoder;
    int64_t *ends = (int64_t *)(void *)t->ends.base;
    TRY(encoder_end(e));
    if (z->settings.last >= 0) TRY(encoder_add_id(e, z->settings.last));
    if ((size_t)t->n_ends >= t->ends.cap_bytes / sizeof *ends)
        return err_fail(ERR_NOMEM, "more documents in one round than %lld", (long long)t->n_ends);
    ends[t->n_ends++] = e->n;
    return OK;
}

static Err encode_jsonl_part(const BulkTokenizer *z, TokenizeThread *t, const TokenizePart *p)
{
    Jsonl j = jsonl_open(p->path, p->raw);
    Bytes text;
    bool more = true;
    Err err;
    j.line = p->line;
    while ((err = jsonl_next(&j, &text, &more)) == OK && more) {
        err = begin_document(z, &t->encoder);
        if (err == OK) err = encoder_add(&t->encoder, text, false);
        if (err == OK) err = end_document(z, t);
        if (err != OK) break;
    }
    jsonl_close(&j);
    return err;
}

static Err encode_text_part(const BulkTokenizer *z, TokenizeThread *t, const TokenizePart *p)
{
    if (p->first) TRY(begin_document(z, &t->encoder));
    TRY(encoder_add(&t->encoder, p->raw, false));
    return p->last ? end_document(z, t) : OK;
}

/* The work of one thread: takes parts until none is left. */
static void encode_parts(void *work, int64_t tile)
{
    Round *r = work;
    BulkTokenizer *z = r->z;
    TokenizeThread *t = &z->thread[tile];
    int i;
    encoder_clear(&t->encoder);
    t->n_ends = 0;
    while ((i = atomic_fetch_add(&r->next, 1)) < z->n_parts) {
        TokenizePart *p = &z->part[i];
        p->thread = (int)tile;
        p->from = t->encoder.n;
        p->first_end = t->n_ends;
        p->err = p->path ? encode_jsonl_part(z, t, p) : encode_text_part(z, t, p);
        if (p->err != OK) snprintf(p->why, sizeof p->why, "%s", err_text());
        p->to = t->encoder.n;
        p->n_ends = t->n_ends - p->first_end;
    }
}

static Err write_part(BulkTokenizer *z, const TokenizePart *p)
{
    const TokenizeThread *t = &z->thread[p->thread];
    const int64_t *end = (const int64_t *)(const void *)t->ends.base + p->first_end;
    int64_t at = p->from;
    if (p->err != OK) return err_fail(p->err, "%s", p->why);
    for (int64_t i = 0; i < p->n_ends; at = end[i++]) {
        TRY(writer_ids(z->settings.writer, t->encoder.id + at, end[i] - at));
        TRY(writer_end(z->settings.writer));
    }
    return writer_ids(z->settings.writer, t->encoder.id + at, p->to - at);
}

/* Encodes and writes the pending parts; none is pending afterwards. */
static Err run_round(BulkTokenizer *z)
{
    Round r = {.z = z};
    size_t bytes = 0;
    team_run(z->team, z->settings.threads, encode_parts, &r);
    for (int i = 0; i < z->n_parts; i++) {
        TRY(write_part(z, &z->part[i]));
        bytes += z->part[i].raw.bytes;
    }
    z->n_parts = 0;
    z->replaced = 0;
    for (int i = 0; i < z->settings.threads; i++) z->replaced += z->thread[i].encoder.replaced;
    if (z->settings.progress) z->settings.progress(z->settings.context, (int64_t)bytes);
    return OK;
}

static Err add_part(BulkTokenizer *z, const TokenizePart *p)
{
    z->part[z->n_parts++] = *p;
    return z->n_parts == z->max_parts ? run_round(z) : OK;
}

static bool is_letter(unsigned char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

/* Returns the end of the first part of a text: before a space between letters. */
static size_t cut_text(const BulkTokenizer *z, Bytes text)
{
    size_t at = z->settings.part_bytes;
    if (!tokenizer_cuts(z->settings.of)) return text.bytes;
    for (; at + 1 < text.bytes; at++)
        if (text.at[at] == ' ' && is_letter(text.at[at - 1]) && is_letter(text.at[at + 1]))
            return at;
    return text.bytes;
}

Err tokenize_text(BulkTokenizer *z, Bytes text)
{
    TokenizePart p = {.first = true};
    do {
        const size_t n = cut_text(z, text);
        p.raw = (Bytes){text.at, n};
        p.last = n == text.bytes;
        TRY(add_part(z, &p));
        p.first = false;
        text = (Bytes){text.at + n, text.bytes - n};
    } while (!p.last);
    return run_round(z);
}

static int64_t count_lines(Bytes text)
{
    int64_t lines = 0;
    for (const unsigned char *p = text.at, *end = p + text.bytes;
         p < end && (p = memchr(p, '\n', (size_t)(end - p))); p++)
        lines++;
    return lines;
}

Err tokenize_jsonl(BulkTokenizer *z, const char *path, Bytes data)
{
    TokenizePart p = {.path = path};
    while (data.bytes > 0) {
        size_t n = data.bytes;
        if (n > z->settings.part_bytes) {
            const size_t at = z->settings.part_bytes;
            const unsigned char *line = memchr(data.at + at, '\n', n - at);
            if (line) n = (size_t)(line - data.at) + 1;
        }
        p.raw = (Bytes){data.at, n};
        TRY(add_part(z, &p));
        p.line += count_lines(p.raw);
        data = (Bytes){data.at + n, data.bytes - n};
    }
    return run_round(z);
}
