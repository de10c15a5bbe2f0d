/* layouts.c -- layouts as rows of small integers; a greedy set of rows that covers all pairs. */
#include "verify/layouts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schedule/gen/generate.h"

enum { REPLICATE, SHARD, TP, STAGES, ZERO, EACH, SEQUENCE, KEEP, BY_COST, N_OPTIONS };

typedef struct {
    int value[N_OPTIONS];
} OptionRow;

static int one_if_none(int n) { return n ? n : 1; }

int layout_ranks(const ParallelSettings *p)
{
    return one_if_none(p->mesh.dp_replicate) * one_if_none(p->mesh.dp_shard) *
           one_if_none(p->mesh.tp) * one_if_none(p->mesh.pp);
}

__attribute__((format(printf, 2, 3))) static void add_word(char *buffer, const char *format, ...)
{
    const size_t n = strlen(buffer);
    va_list args;
    va_start(args, format);
    if (n) snprintf(buffer + n, LAYOUT_TEXT_BYTES - n, " ");
    vsnprintf(buffer + n + (n > 0), LAYOUT_TEXT_BYTES - n - (n > 0), format, args);
    va_end(args);
}

const char *layout_words(const ParallelSettings *p, char *buffer)
{
    const bool two = p->mesh.dp_replicate > 1;
    buffer[0] = '\0';
    if (two) add_word(buffer, "dp_replicate=%d", p->mesh.dp_replicate);
    if (two) add_word(buffer, "dp_shard=%d", one_if_none(p->mesh.dp_shard));
    if (!two && p->mesh.dp_shard > 1) add_word(buffer, "dp=%d", p->mesh.dp_shard);
    if (p->mesh.tp > 1) add_word(buffer, "tp=%d", p->mesh.tp);
    if (p->mesh.pp > 1) add_word(buffer, "pp=%d", p->mesh.pp);
    if (p->schedule && strcmp(p->schedule, "1f1b") != 0)
        add_word(buffer, "schedule=%s", p->schedule);
    if (p->chunks) add_word(buffer, "chunks=%d", p->chunks);
    if (p->slices) add_word(buffer, "slices=%d", p->slices);
    if (p->group) add_word(buffer, "group=%d", p->group);
    if (p->split && strcmp(p->split, "even") != 0) add_word(buffer, "split=%s", p->split);
    if (p->evict) add_word(buffer, "evict");
    if (p->zero) add_word(buffer, "zero=%d", p->zero);
    if (p->reduce_each && p->zero < 2) add_word(buffer, "reduce=each");
    if (p->sequence) add_word(buffer, "sequence");
    if (p->keep_gathered) add_word(buffer, "regather=false");
    if (p->fold > 1) add_word(buffer, "fold=%d", p->fold);
    if (p->live && p->zero == 3) add_word(buffer, "live=%d", p->live);
    return buffer[0] ? buffer : strcpy(buffer, "one rank");
}

/* ---- parsing ---- */

typedef struct {
    const char *name;
    int low, high;
} LayoutKey;

static const LayoutKey keys[] = {
    {"dp_replicate", 1, 4096}, {"dp_shard", 1, 4096}, {"dp", 1, 4096},
    {"tp", 1, 4096},           {"zero", 0, 3},        {"live", 1, 4096},
    {"fold", 1, 4096},         {"pp", 1, 4096},       {"chunks", 1, 4096},
    {"group", 1, 4096},        {"slices", 1, 4096}};

static void set_key(ParallelSettings *p, const char *name, int value)
{
    if (strcmp(name, "dp_replicate") == 0) p->mesh.dp_replicate = value;
    if (strcmp(name, "dp_shard") == 0 || strcmp(name, "dp") == 0) p->mesh.dp_shard = value;
    if (strcmp(name, "tp") == 0) p->mesh.tp = value;
    if (strcmp(name, "zero") == 0) p->zero = value;
    if (strcmp(name, "live") == 0) p->live = value;
    if (strcmp(name, "fold") == 0) p->fold = value;
    if (strcmp(name, "pp") == 0) p->mesh.pp = value;
    if (strcmp(name, "chunks") == 0) p->chunks = value;
    if (strcmp(name, "group") == 0) p->group = value;
    if (strcmp(name, "slices") == 0) p->slices = value;
}

static Err bad_word(const char *word)
{
    return err_fail(
        ERR_CONFIG,
        "layout: \"%s\" is not a word of a layout; the words are dp=N dp_replicate=N "
        "dp_shard=N tp=N pp=N schedule=NAME chunks=N slices=N group=N split=cost evict zero=0..3 "
        "live=N fold=N reduce=each sequence regather=false, separated by spaces; separate layouts "
        "by ;",
        word);
}

static Err parse_schedule(const char *name, ParallelSettings *p)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        if (strcmp(row[i].name, name) == 0) return p->schedule = row[i].name, OK;
    return err_fail(ERR_CONFIG,
                    "layout: schedule=%s: there is no such schedule; `sheaf help "
                    "parallel.schedule` lists them",
                    name);
}

static Err parse_word(const char *word, ParallelSettings *p)
{
    const char *equal = strchr(word, '=');
    if (strcmp(word, "sequence") == 0 || strcmp(word, "sequence=true") == 0)
        return p->sequence = true, OK;
    if (strcmp(word, "evict") == 0 || strcmp(word, "evict=true") == 0) return p->evict = true, OK;
    if (strcmp(word, "regather=false") == 0) return p->keep_gathered = true, OK;
    if (strcmp(word, "reduce=each") == 0) return p->reduce_each = true, OK;
    if (strcmp(word, "split=cost") == 0) return p->split = "cost", OK;
    if (strncmp(word, "schedule=", 9) == 0) return parse_schedule(word + 9, p);
    for (size_t i = 0; equal && i < sizeof keys / sizeof *keys; i++) {
        char *end;
        const size_t length = strlen(keys[i].name);
        if (length != (size_t)(equal - word) || strncmp(word, keys[i].name, length) != 0) continue;
        const long value = strtol(equal + 1, &end, 10);
        if (*end || end == equal + 1 || value < keys[i].low || value > keys[i].high)
            return err_fail(ERR_CONFIG, "layout: %s: must be a number from %d to %d", word,
                            keys[i].low, keys[i].high);
        set_key(p, keys[i].name, (int)value);
        return OK;
    }
    return bad_word(word);
}

/* True if the key of the word at `at` ("tp" of "tp=2") occurs in an earlier word too. */
static bool is_named_before(const char *text, size_t at, size_t n)
{
    size_t name = strcspn(text + at, "=, ;\t\n");
    if (name > n) name = n;
    for (size_t k = 0; k < at; k += 1 + strcspn(text + k, ", ;\t\n"))
        if (strcspn(text + k, "=, ;\t\n") == name && strncmp(text + k, text + at, name) == 0)
            return true;
    return false;
}

Err layout_parse(const char *text, size_t length, ParallelSettings *out)
{
    ParallelSettings p = {0};
    for (size_t at = 0; at < length;) {
        char word[64];
        size_t n = strcspn(text + at, ", ;\t\n");
        if (n > length - at) n = length - at;
        snprintf(word, sizeof word, "%.*s", (int)n, text + at);
        if (n && is_named_before(text, at, n))
            return err_fail(ERR_CONFIG, "layout: %s: set twice; remove one of the two", word);
        if (n) TRY(parse_word(word, &p));
        at += n + 1;
    }
    *out = p;
    return OK;
}

/* ---- covering ---- */

static ParallelSettings settings_of(const OptionRow *r)
{
    return (ParallelSettings){
        .mesh = {r->value[REPLICATE], r->value[SHARD], r->value[TP], r->value[STAGES]},
        .zero = r->value[ZERO],
        .reduce_each = r->value[EACH],
        .sequence = r->value[SEQUENCE],
        .keep_gathered = r->value[KEEP],
        .split = r->value[BY_COST] ? "cost" : NULL,
    };
}

/* True if every option of the layout has an effect. */
static bool is_plain(const OptionRow *r)
{
    if (r->value[SEQUENCE] && r->value[TP] == 1) return false;
    if (r->value[KEEP] && !r->value[SEQUENCE]) return false;
    if (r->value[EACH] && r->value[ZERO] >= 2) return false;
    if (r->value[BY_COST] && r->value[STAGES] == 1) return false;
    if (r->value[REPLICATE] * r->value[SHARD] == 1)
        return r->value[ZERO] == 0 && !r->value[EACH]; /* one dp rank has no state to share */
    return r->value[REPLICATE] == 1 || r->value[SHARD] > 1;
}

static Err all_rows(int ranks, int stages, Arena *arena, OptionRow **out, int *n)
{
    enum { SWITCHES = 64 }; /* values of all options but the sizes of the mesh */
    OptionRow *row;
    int count = 0;
    TRY(ARENA_NEW(arena, (int64_t)ranks * ranks * ranks * stages * SWITCHES + 1, &row));
    for (int r = 1; r <= ranks; r++)
        for (int s = 1; r * s <= ranks; s++)
            for (int t = 1; r * s * t <= ranks; t++)
                for (int k = 0; k < SWITCHES * stages; k++) {
                    const int p = 1 + k / SWITCHES;
                    const OptionRow one = {
                        {r, s, t, p, k & 3, k >> 2 & 1, k >> 3 & 1, k >> 4 & 1, k >> 5 & 1}};
                    const int world = r * s * t * p;
                    if (world > 1 && world <= ranks && is_plain(&one)) row[count++] = one;
                }
    *out = row;
    *n = count;
    return OK;
}

/* The pairs of option values that are covered so far. */
typedef struct {
    int size; /* values of every option are below this */
    bool *done;
} PairCoverage;

static bool *pair_of(const PairCoverage *p, const OptionRow *r, int a, int b)
{
    return &p->done[((a * N_OPTIONS + b) * p->size + r->value[a]) * p->size + r->value[b]];
}

static int new_pairs(const PairCoverage *p, const OptionRow *r)
{
    int n = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++) n += !*pair_of(p, r, a, b);
    return n;
}

Err layouts_covering(int ranks, int stages, Arena *arena, ParallelSettings **out, int *n)
{
    PairCoverage pairs = {.size = ranks < 4 ? 5 : ranks + 1};
    OptionRow *row;
    int n_rows, count = 0;
    TRY(all_rows(ranks, stages, arena, &row, &n_rows));
    TRY(ARENA_NEW(arena, N_OPTIONS * N_OPTIONS * pairs.size * pairs.size, &pairs.done));
    TRY(ARENA_NEW(arena, n_rows + 1, out));
    for (;;) {
        int best = -1, most = 0;
        for (int i = 0; i < n_rows; i++) {
            const int more = new_pairs(&pairs, &row[i]);
            if (more > most) most = more, best = i;
        }
        if (best < 0) break;
        for (int a = 0; a < N_OPTIONS; a++)
            for (int b = a + 1; b < N_OPTIONS; b++) *pair_of(&pairs, &row[best], a, b) = true;
        (*out)[count++] = settings_of(&row[best]);
    }
    *n = count;
    return OK;
}
