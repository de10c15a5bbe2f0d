/* bytes.c -- growing buffers, and files in a scratch folder. */
#define _POSIX_C_SOURCE 200809L
#include "support/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_NAMES = 256, PATHS = 8 };

static char folder[64];
static char made[MAX_NAMES][64];
static int n_made;

static void give_up(const char *what)
{
    perror(what);
    abort();
}

void buffer_free(Buffer *b)
{
    free(b->at);
    *b = (Buffer){0};
}

void buffer_raw(Buffer *b, const void *from, size_t bytes)
{
    if (b->bytes + bytes >= b->room) {
        b->room = 2 * (b->bytes + bytes) + 64;
        b->at = realloc(b->at, b->room);
        if (!b->at) give_up("realloc");
    }
    memcpy(b->at + b->bytes, from, bytes);
    b->bytes += bytes;
}

void buffer_text(Buffer *b, const char *text) { buffer_raw(b, text, strlen(text)); }

void buffer_put(Buffer *b, uint64_t x, int width)
{
    for (int i = 0; i < width; i++) {
        const unsigned char byte = (unsigned char)(x >> 8 * i);
        buffer_raw(b, &byte, 1);
    }
}

void buffer_set(Buffer *b, size_t at, uint64_t x, int width)
{
    for (int i = 0; i < width; i++) b->at[at + (size_t)i] = (unsigned char)(x >> 8 * i);
}

const char *scratch(const char *name)
{
    static char path[PATHS][160];
    static int next;
    if (!*folder) {
        strcpy(folder, "/tmp/sheaf_test_XXXXXX");
        if (!mkdtemp(folder)) give_up(folder);
    }
    int known = 0;
    for (int i = 0; i < n_made; i++) known |= strcmp(made[i], name) == 0;
    if (!known && n_made < MAX_NAMES) snprintf(made[n_made++], sizeof *made, "%s", name);
    char *out = path[next++ % PATHS];
    snprintf(out, sizeof *path, "%s/%s", folder, name);
    return out;
}

void scratch_remove(void)
{
    for (int i = 0; i < n_made; i++) remove(scratch(made[i]));
    if (*folder) rmdir(folder);
    *folder = '\0';
    n_made = 0;
}

const char *scratch_write(const char *name, const Buffer *b)
{
    const char *path = scratch(name);
    remove(path); /* some file systems flush a file that is truncated and rewritten */
    FILE *f = fopen(path, "wb");
    if (!f || (b->bytes && fwrite(b->at, 1, b->bytes, f) != b->bytes) || fclose(f) != 0)
        give_up(path);
    return path;
}

const char *scratch_text(const char *name, const char *text)
{
    Buffer b = {0};
    buffer_text(&b, text);
    const char *path = scratch_write(name, &b);
    buffer_free(&b);
    return path;
}
