/* test_ranks_pipeline_pairs.c -- pairwise coverage: every possible pair of values of (schedule,
 * stages, chunks, slices, micro-batches, model, layers, split, evict, dp, zero, tp, sequence,
 * recompute) is in some run. Each run is five steps of AdamW in f64, within 1e-10 of one rank,
 * and sends exactly the predicted bytes. Transfers are hostile, and unwritten memory is NaN. */
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "schedule/evict.h"
#include "schedule/gen/generate.h"
#include "support/world.h"

enum {
    SCHEDULE,
    STAGES,
    CHUNKS,
    SLICES,
    MICROS,
    MODEL,
    LAYERS,
    SPLIT_BY,
    EVICT,
    DP,
    ZERO,
    TP,
    SEQUENCE,
    RECOMPUTE,
    N_OPTIONS,
    MAX_VALUES = 11,
    MAX_RANKS = 12,
    TRIES = 6000
};

static const char *const schedules[] = {"gpipe",     "1f1b",    "interleaved", "bfs",
                                        "zbh1",      "zbh2",    "izb",         "zbv",
                                        "dualpipev", "seq1f1b", "terapipe"};
static const char *const models[] = {"gpt2", "llama", "llama-tied", "gpt2-untied"};

static const struct {
    const char *name;
    int n, value[MAX_VALUES];
} option[N_OPTIONS] = {
    {"schedule", 11, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
    {"pp", 6, {1, 2, 3, 4, 5, 6}},
    {"chunks", 3, {1, 2, 3}},
    {"slices", 3, {1, 2, 3}},
    {"micros", 6, {1, 2, 3, 4, 5, 7}},
    {"model", 4, {0, 1, 2, 3}},
    {"layers", 3, {2, 4, 7}},
    {"split", 2, {0, 1}},
    {"evict", 2, {0, 1}},
    {"dp", 3, {1, 2, 3}},
    {"zero", 4, {0, 1, 2, 3}},
    {"tp", 2, {1, 2}},
    {"sequence", 2, {0, 1}},
    {"recompute", 3, {0, 1, 2}},
};

typedef struct {
    int at[N_OPTIONS]; /* indices of the values */
} Row;

static int value(const Row *r, int o) { return option[o].value[r->at[o]]; }

/* True if the schedule would evict a frame. */
static bool evicts(const Row *r)
{
    Arena arena;
    Schedule s;
    bool any = false;
    const Pipeline pipe = {.stages = value(r, STAGES),
                           .micros = value(r, MICROS),
                           .chunks = value(r, CHUNKS),
                           .slices = value(r, SLICES)};
    DO(arena_open(&arena, "evicts", ARENA_PLENTY));
    DO(schedule_generate(schedules[value(r, SCHEDULE)], &pipe, &arena, &s));
    DO(schedule_evict(&s, 0, &arena, &s));
    for (int stage = 0; stage < s.stages; stage++)
        for (int i = 0; i < s.n[stage]; i++) any = any || s.list[stage][i].kind == A_EVICT;
    arena_close(&arena);
    return any;
}

static bool can_be(const Row *r)
{
    const int s = value(r, SCHEDULE), chunks = value(r, CHUNKS), pp = value(r, STAGES);
    const bool any = s == 2 || s == 3 || s == 6, two = s == 7 || s == 8, sliced = s == 0 || s >= 9;
    if (value(r, SLICES) > 1 && !sliced) return false;
    if (two ? chunks != 2 : !any && chunks != 1) return false;
    if (pp * chunks > value(r, LAYERS) + 2) return false;
    if (pp * value(r, DP) * value(r, TP) > MAX_RANKS) return false;
    if (value(r, ZERO) > 0 && value(r, DP) == 1) return false;
    if (value(r, SEQUENCE) && value(r, TP) == 1) return false;
    return !value(r, EVICT) || evicts(r);
}

typedef struct {
    bool done[N_OPTIONS][N_OPTIONS][MAX_VALUES][MAX_VALUES];
} Pairs;

static int new_pairs(const Pairs *p, const Row *r)
{
    int n = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++) n += !p->done[a][b][r->at[a]][r->at[b]];
    return n;
}

/* Draws rows with values x and y of options a and b, and keeps the one with the most new pairs.
 * Returns false if no such row is possible. */
static bool draw_row(const Pairs *p, const Random *random, uint64_t *drawn, const int pair[4],
                     Row *out)
{
    int most = 0;
    for (int i = 0; i < TRIES; i++) {
        Row r;
        for (int o = 0; o < N_OPTIONS; o++)
            r.at[o] = (int)(random_bits(random, (*drawn)++) % (uint64_t)option[o].n);
        r.at[pair[0]] = pair[2];
        r.at[pair[1]] = pair[3];
        const int more = new_pairs(p, &r);
        if (more <= most || !can_be(&r)) continue;
        most = more;
        *out = r;
    }
    return most > 0;
}

static void name_row(const Row *r, char *text, size_t bytes)
{
    size_t at = 0;
    for (int o = 0; o < N_OPTIONS; o++) {
        if (o == SCHEDULE || o == MODEL)
            at += (size_t)snprintf(text + at, bytes - at, "%s ",
                                   o == MODEL ? models[value(r, o)] : schedules[value(r, o)]);
        else
            at += (size_t)snprintf(text + at, bytes - at, "%s=%d ", option[o].name, value(r, o));
    }
}

static void run_row(const Row *r)
{
    char name[256];
    ModelConfig config = *test_model(models[value(r, MODEL)]);
    World w = world_of(test_job_settings(models[value(r, MODEL)], JOB_STEP));
    WorldResult one, many;
    name_row(r, name, sizeof name);
    config.n_layers = value(r, LAYERS);
    w.set.config = &config;
    w.set.optim.eps =
        1e-6; /* a bias of k has only rounding as its gradient, which AdamW divides by itself */
    w.set.micros = value(r, MICROS) * value(r, DP);
    w.set.compile.recompute = value(r, RECOMPUTE) == 0   ? RECOMPUTE_NONE
                              : value(r, RECOMPUTE) == 1 ? RECOMPUTE_SELECTIVE
                                                         : RECOMPUTE_FULL;
    w.hostile = true;
    w.seed = (uint64_t)(value(r, SCHEDULE) + 10 * value(r, MICROS));
    DO(world_run_job(&w, &one));
    w.set.micros = value(r, MICROS);
    w.set.parallel = (ParallelSettings){
        .mesh = {.dp_shard = value(r, DP), .tp = value(r, TP), .pp = value(r, STAGES)},
        .zero = value(r, ZERO),
        .sequence = value(r, SEQUENCE),
        .schedule = schedules[value(r, SCHEDULE)],
        .split = value(r, SPLIT_BY) ? "cost" : NULL,
        .evict = value(r, EVICT),
        .slices = value(r, SLICES),
        .chunks = value(r, CHUNKS)};
    if (world_run_job(&w, &many) != OK) fail_msg("%s: %s", name, err_text());
    const double off = world_differ_all(&one, &many);
    if (!(off <= 1e-10)) fail_msg("%s: %g from one rank", name, off);
    int64_t sent = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sent += many.sent[k];
    if (sent != many.predicted || many.scalars_sent != many.scalars_predicted)
        fail_msg("%s: %lld and %lld bytes sent, %lld and %lld predicted", name, (long long)sent,
                 (long long)many.scalars_sent, (long long)many.predicted,
                 (long long)many.scalars_predicted);
    world_result_close(&one);
    world_result_close(&many);
}

/* Runs rows until all pairs of options a and b are covered. */
static int cover(Pairs *pairs, const Random *random, uint64_t *drawn, int a, int b)
{
    int runs = 0;
    for (int x = 0; x < option[a].n; x++)
        for (int y = 0; y < option[b].n; y++) {
            const int pair[4] = {a, b, x, y};
            Row r;
            if (pairs->done[a][b][x][y] || !draw_row(pairs, random, drawn, pair, &r)) continue;
            for (int c = 0; c < N_OPTIONS; c++)
                for (int d = c + 1; d < N_OPTIONS; d++) pairs->done[c][d][r.at[c]][r.at[d]] = true;
            run_row(&r);
            runs++;
        }
    return runs;
}

static void every_pair(void **state)
{
    (void)state;
    const Random random = random_named(3, "pairs");
    Pairs *pairs = calloc(1, sizeof *pairs);
    uint64_t drawn = 0;
    int runs = 0;
    for (int a = 0; a < N_OPTIONS; a++)
        for (int b = a + 1; b < N_OPTIONS; b++) runs += cover(pairs, &random, &drawn, a, b);
    printf("%d runs\n", runs);
    assert_true(runs >= 66 && runs <= 250); /* schedules times stages */
    for (int s = 0; s < option[SCHEDULE].n; s++)
        assert_int_equal(pairs->done[SCHEDULE][EVICT][s][1],
                         s == 1 || s == 2 || s == 7 || s == 8 || s == 9);
    free(pairs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
