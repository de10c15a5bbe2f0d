/* speak.c -- tokens to text, and text to the terminal. */
#include "cli/speak.h"

#include <stdio.h>
#include <string.h>
#include "data/unicode.h"

Err speaker_open(Speaker *s, int64_t max_tokens, Arena *a)
{
    const size_t room = (size_t)max_tokens * (s->no_text ? 0 : decode_max_bytes(s->tokenizer));
    s->arena = a;
    TRY(ARENA_NEW(a, s->prompts->n, &s->of));
    for (int64_t i = 0; i < s->prompts->n; i++) {
        void *text; /* pages that are not written take no memory: so many bytes are rarely needed */
        TRY(arena_push(a, room + 1, &text));
        TRY(ARENA_NEW(a, max_tokens, &s->of[i].id));
        s->of[i].text = text;
    }
    return OK;
}

/* Where the first stop string begins, looking from `from` on; n: nowhere. */
static size_t find_stop(const Speaker *s, const Utterance *u, size_t from)
{
    size_t first = u->n;
    for (int i = 0; i < s->n_stops; i++) {
        const size_t length = strlen(s->stop[i]);
        for (size_t at = from; at + length <= u->n && at < first; at++)
            if (memcmp(u->text + at, s->stop[i], length) == 0) first = at;
    }
    return first;
}

/* Bytes at the end that a stop string may begin with. */
static size_t held_back(const Speaker *s, const Utterance *u)
{
    size_t most = 0;
    for (int i = 0; i < s->n_stops; i++)
        for (size_t n = strlen(s->stop[i]) - 1; n > most; n--)
            if (n <= u->n && memcmp(u->text + u->n - n, s->stop[i], n) == 0) most = n;
    return most;
}

static void show_ids(const Speaker *s, Utterance *u)
{
    for (; u->ids_said < u->n_ids; u->ids_said++)
        fprintf(s->out, "%s%d", u->ids_said ? " " : "", u->id[u->ids_said]);
}

/* Parts end at whole characters, so that each made sound is the whole made sound. */
static void show_part(const Speaker *s, Bytes part)
{
    const size_t mark = arena_mark(s->arena);
    int64_t replaced = 0;
    Bytes sound;
    if (utf8_repair(part, s->arena, &sound, &replaced) != OK)
        sound = part; /* no memory: as it is */
    fwrite(sound.at, 1, sound.bytes, s->out);
    arena_rewind(s->arena, mark);
}

static void show_text(const Speaker *s, Utterance *u, Bytes prompt)
{
    if (!u->begun) show_part(s, prompt);
    u->begun = true;
    const size_t sure = u->ended ? u->n : utf8_whole(u->text, u->n - held_back(s, u));
    if (sure <= u->said) return;
    show_part(s, (Bytes){(const unsigned char *)u->text + u->said, sure - u->said});
    u->said = sure;
}

/* Whose turn it is says what it can; one that has ended gives its turn to the next. */
static void show(Speaker *s)
{
    if (!s->out) return;
    for (; s->turn < s->prompts->n; s->turn++) {
        Utterance *u = &s->of[s->turn];
        if (!u->ended && u->n_ids == 0) break;
        if (s->ids)
            show_ids(s, u);
        else
            show_text(s, u, s->prompts->text[s->turn]);
        if (!u->ended) break;
        fputc('\n', s->out);
    }
    fflush(s->out);
}

bool speaker_token(void *speaker, int64_t prompt, int32_t token)
{
    Speaker *s = speaker;
    Utterance *u = &s->of[prompt];
    const bool silent = s->no_text || (s->tokenizer && tokenizer_special(s->tokenizer, token));
    const Bytes b = silent ? (Bytes){NULL, 0} : decode_token(s->tokenizer, token);
    const size_t before = u->n;
    size_t longest = 0;
    for (int i = 0; i < s->n_stops; i++)
        if (strlen(s->stop[i]) > longest) longest = strlen(s->stop[i]);
    u->id[u->n_ids++] = token;
    if (b.bytes) memcpy(u->text + u->n, b.at, b.bytes);
    u->n += b.bytes;
    const size_t stop = find_stop(s, u, before > longest ? before - longest : 0);
    const bool found = stop < u->n;
    u->n = stop;
    if (!found) show(s);
    return found;
}

void speaker_end(void *speaker, int64_t prompt, GenerateEnd why)
{
    Speaker *s = speaker;
    s->of[prompt].ended = true;
    s->of[prompt].why = why;
    show(s);
}
