/* text_stream.c -- tokens to text, and text to the terminal. */
#include "cli/text_stream.h"

#include <stdio.h>
#include <string.h>
#include "data/unicode.h"

Err text_stream_open(TextStream *s, int64_t max_tokens, Arena *a)
{
    const size_t room = (size_t)max_tokens * (s->no_text ? 0 : decode_max_bytes(s->tokenizer));
    s->arena = a;
    TRY(ARENA_NEW(a, s->prompts->n, &s->completion));
    for (int64_t i = 0; i < s->prompts->n; i++) {
        void *text; /* the worst case; pages that are never written take no memory */
        TRY(arena_push(a, room + 1, &text));
        TRY(ARENA_NEW(a, max_tokens, &s->completion[i].id));
        s->completion[i].text = text;
    }
    return OK;
}

/* Returns the start of the first stop string at or after `from`; c->n if there is none. */
static size_t find_stop(const TextStream *s, const Completion *c, size_t from)
{
    size_t first = c->n;
    for (int i = 0; i < s->n_stops; i++) {
        const size_t length = strlen(s->stop[i]);
        for (size_t at = from; at + length <= c->n && at < first; at++)
            if (memcmp(c->text + at, s->stop[i], length) == 0) first = at;
    }
    return first;
}

/* Returns the length of the longest suffix that is a proper prefix of a stop string. */
static size_t held_back(const TextStream *s, const Completion *c)
{
    size_t longest = 0;
    for (int i = 0; i < s->n_stops; i++)
        for (size_t n = strlen(s->stop[i]) - 1; n > longest; n--)
            if (n <= c->n && memcmp(c->text + c->n - n, s->stop[i], n) == 0) longest = n;
    return longest;
}

static void print_ids(const TextStream *s, Completion *c)
{
    for (; c->ids_printed < c->n_ids; c->ids_printed++)
        fprintf(s->out, "%s%d", c->ids_printed ? " " : "", c->id[c->ids_printed]);
}

/* Parts end at whole characters, so repairing each part gives the same bytes as repairing the whole
 * text at once. */
static void print_part(const TextStream *s, Bytes part)
{
    const size_t mark = arena_mark(s->arena);
    int64_t replaced = 0;
    Bytes valid;
    if (utf8_repair(part, s->arena, &valid, &replaced) != OK)
        valid = part; /* no memory: as it is */
    fwrite(valid.at, 1, valid.bytes, s->out);
    arena_rewind(s->arena, mark);
}

static void print_text(const TextStream *s, Completion *c, Bytes prompt)
{
    if (!c->prompt_printed) print_part(s, prompt);
    c->prompt_printed = true;
    const size_t final = c->ended ? c->n : utf8_whole(c->text, c->n - held_back(s, c));
    if (final <= c->printed) return;
    print_part(s, (Bytes){(const unsigned char *)c->text + c->printed, final - c->printed});
    c->printed = final;
}

/* Prints the current completion as far as it is final. After one that has ended, continues with the
 * next. */
static void print_current(TextStream *s)
{
    if (!s->out) return;
    for (; s->current < s->prompts->n; s->current++) {
        Completion *c = &s->completion[s->current];
        if (!c->ended && c->n_ids == 0) break;
        if (s->ids)
            print_ids(s, c);
        else
            print_text(s, c, s->prompts->text[s->current]);
        if (!c->ended) break;
        fputc('\n', s->out);
    }
    fflush(s->out);
}

bool text_stream_token(void *stream, int64_t prompt, int32_t token)
{
    TextStream *s = stream;
    Completion *c = &s->completion[prompt];
    const bool silent = s->no_text || (s->tokenizer && tokenizer_special(s->tokenizer, token));
    const Bytes b = silent ? (Bytes){NULL, 0} : decode_token(s->tokenizer, token);
    const size_t before = c->n;
    size_t longest = 0;
    for (int i = 0; i < s->n_stops; i++)
        if (strlen(s->stop[i]) > longest) longest = strlen(s->stop[i]);
    c->id[c->n_ids++] = token;
    if (b.bytes) memcpy(c->text + c->n, b.at, b.bytes);
    c->n += b.bytes;
    /* A stop string that this token completes starts less than its length before the token. */
    const size_t stop = find_stop(s, c, before > longest ? before - longest : 0);
    const bool found = stop < c->n;
    c->n = stop;
    if (!found) print_current(s);
    return found;
}

void text_stream_end(void *stream, int64_t prompt, GenerateEnd why)
{
    TextStream *s = stream;
    s->completion[prompt].ended = true;
    s->completion[prompt].why = why;
    print_current(s);
}
