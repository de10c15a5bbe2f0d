/* choices_measure.c -- the fastest of several algorithms, by the clock.
 *
 *     the field   those that cuBLASLt suggests, then others, as long as the time for one shape lasts: a
 *                 job has some fifteen, and must not wait for them. Who is far behind after one run is
 *                 not run again
 *     rounds      the best of each tile, by turns
 *     hot         of large products, those that are still close, each for a while alone
 *
 * A card that works without a pause lowers its clock after some 50 ms, to stay within its power: who
 * comes later looks slower, and in a step, who needs less power is faster. So the card is brought there
 * first; then each runs until the clock is what its own power makes it; and all run once more from the
 * last to the first, so that what drifts falls on all of them alike. */
#define _POSIX_C_SOURCE 199309L
#include "device/cuda/choices.h"

#include <time.h>

enum { REPEATS = 2, FEW = 8, BUDGET_MS = 90, FORMS_MS = 400, TILES_MS = 250 };
enum { FINALISTS = 6, LEAST_ROUNDS = 3, MOST_ROUNDS = 12, ROUNDS_MS = 40 };
enum { MOST_HOT = 4, HEAT_MS = 80, SETTLE_MS = 20, ALONE_MS = 40, MOST_RUNS = 2000 };
#define LARGE_MS 0.08f /* products that take a share of a step worth the while */
#define CLOSE 1.05f    /* to the best of the rounds */
#define HOPELESS 1.15f /* so much behind the best, after one run */
#define NEVER 1e30f

/* Puts the i-th of those that are compared into the queue. */
typedef Err (*RunNth)(const void *what, int i);

typedef struct {
    DeviceQueue *q;
    cudaEvent_t event[2];
} Watch;

static Err watch_open(DeviceQueue *q, Watch *w)
{
    w->q = q;
    CUDA_TRY(cudaEventCreate(&w->event[0]));
    CUDA_TRY(cudaEventCreate(&w->event[1]));
    return OK;
}

static void watch_close(Watch *w)
{
    (void)cudaEventDestroy(w->event[0]);
    (void)cudaEventDestroy(w->event[1]);
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds of one of `runs` runs, after `settle` others; NEVER where it does not run. */
static float time_runs(const Watch *w, RunNth run, const void *what, int i, int settle, int runs)
{
    float ms = NEVER;
    for (int k = 0; k < settle + runs; k++) {
        if (k == settle) (void)cudaEventRecord(w->event[0], w->q->stream);
        if (run(what, i) != OK) return NEVER;
    }
    (void)cudaEventRecord(w->event[1], w->q->stream);
    if (cudaEventSynchronize(w->event[1]) != cudaSuccess) return NEVER;
    (void)cudaEventElapsedTime(&ms, w->event[0], w->event[1]);
    return ms / (float)runs;
}

static int runs_in(int ms, float each)
{
    const int n = (int)((float)ms / each) + 1;
    return n < MOST_RUNS ? n : MOST_RUNS;
}

/* Milliseconds of the first n, hot; ms comes in with a guess of each. */
static void time_hot(const Watch *w, RunNth run, const void *what, int n, float *ms)
{
    float hot[FINALISTS] = {0};
    (void)time_runs(w, run, what, 0, 0, runs_in(HEAT_MS, ms[0]));
    for (int k = 0; k < 2 * n; k++) {
        const int i = k < n ? k : 2 * n - 1 - k;
        hot[i] += time_runs(w, run, what, i, runs_in(SETTLE_MS, ms[i]), runs_in(ALONE_MS, ms[i]));
    }
    for (int i = 0; i < n; i++) ms[i] = hot[i] / 2;
}

static int least_of(const float *ms, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (ms[i] < ms[best]) best = i;
    return best;
}

/* ---- algorithms ---- */

typedef struct {
    Watch watch;
    Choice *c;
    Operands with;
    Field *f;
    int entry[FINALISTS]; /* of the field */
    double until;         /* ms */
    float least;          /* of the best so far */
    int best, tried;      /* of the field */
} Race;

static Err run_entry(const void *race, int i)
{
    const Race *r = race;
    r->c->algo = r->f->algo[i];
    return choice_run(r->watch.q, r->c, &r->with);
}

static Err run_finalist(const void *race, int i)
{
    return run_entry(race, ((const Race *)race)->entry[i]);
}

static float time_entry(const Race *r, int i)
{
    float least = time_runs(&r->watch, run_entry, r, i, 1, 1);
    for (int k = 0; k < REPEATS && least < r->least * HOPELESS; k++) {
        const float ms = time_runs(&r->watch, run_entry, r, i, 0, 1);
        if (ms < least) least = ms;
    }
    return least;
}

/* Those of the field that were not tried yet; the first few in any case, the rest while there is
 * time. */
static void run_field(Race *r)
{
    for (; r->tried < r->f->n; r->tried++) {
        if (r->tried >= FEW && now_ms() > r->until) return;
        const float ms = r->f->ms[r->tried] = time_entry(r, r->tried);
        if (ms == NEVER) (void)cudaGetLastError(); /* it does not run: that is all we ask */
        if (ms >= r->least) continue;
        r->least = ms;
        r->best = r->tried;
    }
}

static bool same_tile(const cublasLtMatmulAlgo_t *a, const cublasLtMatmulAlgo_t *b)
{
    int32_t id[2] = {0, 1};
    uint32_t tile[2] = {0, 1};
    size_t got;
#define GET(algo, name, out)                                                                       \
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_##name, out,             \
                                               sizeof *(out), &got)
    GET(a, ID, &id[0]);
    GET(b, ID, &id[1]);
    GET(a, TILE_ID, &tile[0]);
    GET(b, TILE_ID, &tile[1]);
#undef GET
    return id[0] == id[1] && tile[0] == tile[1];
}

/* The fastest of each tile, fastest first; those of the same tile are much alike. */
static int find_finalists(Race *r)
{
    const Field *f = r->f;
    int n = 0;
    for (; n < FINALISTS; n++) {
        int best = -1;
        for (int i = 0; i < r->tried; i++) {
            bool has = f->ms[i] >= r->least * HOPELESS;
            for (int k = 0; k < n && !has; k++) has = same_tile(&f->algo[i], &f->algo[r->entry[k]]);
            if (!has && (best < 0 || f->ms[i] < f->ms[best])) best = i;
        }
        if (best < 0) break;
        r->entry[n] = best;
    }
    return n;
}

/* By turns, as means over rounds; then in the order of that. */
static void run_rounds(Race *r, int n, float *ms)
{
    const double until = now_ms() + ROUNDS_MS;
    int rounds = 0;
    for (int i = 0; i < n; i++) ms[i] = 0;
    for (; rounds < LEAST_ROUNDS || (rounds < MOST_ROUNDS && now_ms() < until); rounds++)
        for (int i = 0; i < n; i++) ms[i] += time_runs(&r->watch, run_finalist, r, i, 0, 1);
    for (int i = 0; i < n; i++) ms[i] /= (float)rounds;
    for (int i = 0; i < n; i++) {
        const int k = i + least_of(ms + i, n - i), entry = r->entry[k];
        const float least = ms[k];
        ms[k] = ms[i], r->entry[k] = r->entry[i];
        ms[i] = least, r->entry[i] = entry;
    }
}

static int last_of(Race *r)
{
    float ms[FINALISTS];
    int n = find_finalists(r), close = 1;
    if (n < 2) return n ? r->entry[0] : r->best;
    run_rounds(r, n, ms);
    if (ms[0] < LARGE_MS) return r->entry[0];
    while (close < n && close < MOST_HOT && ms[close] < ms[0] * CLOSE) close++;
    if (close > 1) time_hot(&r->watch, run_finalist, r, close, ms);
    return r->entry[least_of(ms, close)];
}

static void race(Race *r)
{
    Field *f = r->f;
    DeviceQueue *q = r->watch.q;
    r->least = NEVER;
    r->until = now_ms() + (r->c->shape.point ? FORMS_MS : BUDGET_MS);
    run_field(r);
    if (r->c->shape.point) field_forms(q, r->c, f);
    run_field(r);
    if (r->least > LARGE_MS) {
        r->until += TILES_MS;
        field_tiles(q, r->c, &f->algo[r->best], f);
    }
    run_field(r);
    if (now_ms() < r->until) field_others(q, r->c, f);
    run_field(r);
    if (now_ms() < r->until) field_variants(q, r->c, &f->algo[r->best], f);
    run_field(r);
    r->c->algo = f->algo[last_of(r)];
}

/* What is kept in d must not be added to over and over: it is timed on a copy's worth of other
 * memory, and where there is none, the first suggestion stays. */
Err choice_measure(DeviceQueue *q, Choice *c, const Operands *with, Field *f)
{
    const Shape *s = &c->shape;
    Race r = {.c = c, .with = *with, .f = f};
    const bool kept = s->adds && (!s->c_step || with->c == with->d);
    const size_t bytes = (size_t)(s->columns * s->d_step) * dtype_bytes((DType)s->out_type);
    if (kept && cudaMalloc(&r.with.d, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return OK;
    }
    TRY(watch_open(q, &r.watch));
    race(&r);
    watch_close(&r.watch);
    if (kept) CUDA_TRY(cudaFree(r.with.d));
    return OK;
}

/* ---- ways ---- */

typedef struct {
    const ChoiceRun *way;
    const void *what;
} Ways;

static Err run_way(const void *ways, int i)
{
    const Ways *w = ways;
    return w->way[i](w->what);
}

Err choices_faster(DeviceQueue *q, const ChoiceRun way[2], const void *what, int *out)
{
    const Ways ways = {way, what};
    float ms[2];
    Watch w;
    TRY(watch_open(q, &w));
    for (int i = 0; i < 2; i++) ms[i] = time_runs(&w, run_way, &ways, i, 1, REPEATS);
    if (ms[0] > LARGE_MS && ms[0] < NEVER && ms[1] < NEVER) time_hot(&w, run_way, &ways, 2, ms);
    watch_close(&w);
    *out = least_of(ms, 2);
    return OK;
}
