/* train_same.c -- do all ranks train the same?
 *
 * Processes read their own files: a rank that trains something else would go unnoticed, since all shapes
 * may agree. So each makes a number of its keys and one of its text, and these are compared. */
#include <string.h>

#include "cli/config/print.h"
#include "cli/train.h"

/* Keys that may differ from host to host: where things are, and what a machine has. */
static bool is_local_key(const char *line)
{
    static const char *const name[] = {"dir:", "train:", "valid:", "threads:", "pin:", "- "};
    while (*line == ' ') line++;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (strncmp(line, name[i], strlen(name[i])) == 0) return true;
    return false;
}

static uint64_t hash_line(uint64_t h, const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)line[i]) * 1099511628211u;
    return h;
}

Err train_same(WorldRank *w, const TrainSession *s)
{
    const char *text;
    uint64_t keys = 14695981039346656037u;
    Text t = text_in(w->arena);
    config_print(&s->config, &t);
    TRY(world_agree(w, text_done(&t, &text)));
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        if (!is_local_key(text)) keys = hash_line(keys, text, n);
    }
    TRY(world_same(w, keys, "configuration",
                   "start all ranks with the same run file and arguments"));
    return world_same(w, dataset_fingerprint(&s->train), "text to train on",
                      "give all ranks the same data.train");
}
