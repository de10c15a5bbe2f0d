/* tokenizer.c -- speed of encoding text to ids, on one thread and on several.
 *
 *     build/release/bench/tokenizer [TOKENIZER.json [TEXT]] [threads=2]
 *
 * The defaults are the small vocabulary of the tests and this repository's sources.
 * bench/tokenizer.py runs the official library and this program in the same minute. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/team.h"
#include "data/map.h"
#include "data/tokenizer.h"
#include "support/clock.h"

enum { MAX_THREADS = 1024, PART = 1 << 16, TURNS = 3 };

typedef struct {
    Bytes text;
    int n_parts;
    Encoder encoder[MAX_THREADS];
    int64_t ids[MAX_THREADS];
    int threads;
} Work;

/* Returns the start of part i of the text: after a newline. */
static size_t part_at(const Work *w, int i)
{
    if (i == 0) return 0;
    if (i == w->n_parts) return w->text.bytes;
    const size_t at = w->text.bytes / (size_t)w->n_parts * (size_t)i;
    const unsigned char *line = memchr(w->text.at + at, '\n', w->text.bytes - at);
    return line ? (size_t)(line - w->text.at) + 1 : w->text.bytes;
}

static void encode_parts(void *work, int64_t tile)
{
    Work *w = work;
    for (int i = (int)tile; i < w->n_parts; i += w->threads) {
        const size_t from = part_at(w, i), to = part_at(w, i + 1);
        Encoder *e = &w->encoder[tile];
        encoder_clear(e);
        if (encoder_add(e, (Bytes){w->text.at + from, to - from}, false) != OK) {
            fprintf(stderr, "tokenizer: %s\n", err_text());
            exit(1);
        }
        w->ids[tile] += e->n;
    }
}

/* Measures the best of several runs, each with an empty word cache. */
static Err measure(const Tokenizer *t, Work *w, int threads)
{
    Team *team;
    double best_s = 1e30;
    int64_t ids = 0;
    TRY(team_open(&team, threads, NULL));
    w->threads = threads;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < threads; i++) TRY(encoder_open(&w->encoder[i], t));
        memset(w->ids, 0, sizeof w->ids);
        const double begin = now_s();
        team_run(team, threads, encode_parts, w);
        const double s = now_s() - begin;
        if (s < best_s) best_s = s;
        ids = 0;
        for (int i = 0; i < threads; i++) ids += w->ids[i], encoder_close(&w->encoder[i]);
    }
    team_close(team);
    printf("tokenizer: %d thread%s: %.1f MB/s, %.1f million ids/s (%lld ids of %zu bytes)\n",
           threads, threads == 1 ? "" : "s", 1e-6 * (double)w->text.bytes / best_s,
           1e-6 * (double)ids / best_s, (long long)ids, w->text.bytes);
    return OK;
}

static Err run(const char *path, const char *text, int threads)
{
    static Work w;
    Arena arena;
    Tokenizer *t;
    TRY(arena_open(&arena, "bench", ARENA_PLENTY));
    const double begin = now_s();
    TRY(tokenizer_load(path, &arena, &t));
    printf("tokenizer: %s: %lld ids, read in %.0f ms\n", path, (long long)t->n_ids,
           1e3 * (now_s() - begin));
    TRY(map_file(text, &w.text));
    w.n_parts = (int)(w.text.bytes / PART) + 1;
    for (int n = 1; n <= threads; n *= 2) TRY(measure(t, &w, n));
    unmap(&w.text);
    tokenizer_close(t);
    arena_close(&arena);
    return OK;
}

int main(int argc, char **argv)
{
    const char *file[2] = {"tests/golden/tokenizer/llama3.json",
                           "tests/golden/tokenizer/texts.jsonl"};
    int n_files = 0, threads = cores_usable();
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "threads=", 8) == 0)
            threads = atoi(argv[i] + 8);
        else if (n_files < 2)
            file[n_files++] = argv[i];
    }
    if (threads > cores_usable()) threads = cores_usable();
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads < 1) threads = 1;
    if (run(file[0], file[1], threads) == OK) return 0;
    fprintf(stderr, "tokenizer: %s\n", err_text());
    return 1;
}
