/* hash.c -- hash of a configuration, compared between ranks.
 *
 * Each process reads its own run file. A rank with another learning rate, say, would go unnoticed
 * because all shapes agree; so the ranks compare hashes before they compile. */
#include <string.h>

#include "cli/config/print.h"
#include "cli/train/train.h"

/* True for keys that may differ between machines: paths and properties of a machine. */
static bool is_local_key(const char *line)
{
    static const char *const name[] = {
        "dir:", "train:", "valid:", "threads:", "pin:", "cluster:", "- "};
    while (*line == ' ') line++;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (strncmp(line, name[i], strlen(name[i])) == 0) return true;
    return false;
}

/* FNV-1a */
static uint64_t hash_line(uint64_t h, const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)line[i]) * 1099511628211u;
    return h;
}

Err train_config_hash(const Config *c, Arena *temp, uint64_t *out)
{
    const char *text;
    uint64_t hash = 14695981039346656037u;
    Text t = text_in(temp);
    config_print(c, &t);
    TRY(text_done(&t, &text));
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        if (!is_local_key(text)) hash = hash_line(hash, text, n);
    }
    if (c->run_fresh) hash = hash_line(hash, "fresh", 5); /* not printed */
    *out = hash;
    return OK;
}
