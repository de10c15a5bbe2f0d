/* autotune_tournament.c -- the fastest of several algorithms, by the clock.
 *
 *     the field   those that cuBLASLt suggests, then others, as long as the time for one shape lasts: a
 *                 job has some fifteen, and must not wait for them. Who is far behind after one run is
 *                 not run again
 *     by turns    the fastest few, not all of one tile, many times
 *
 * Of a large product, those that are still close are tried once more, in their place (choices_trial.c).
 *
 * A card that works without a pause lowers its clock after some 50 ms, to stay within its power, and
 * within a step it has that clock. So those of a large product run until it is there; then by short
 * turns without a pause, so that what drifts falls on all of them alike. */
#define _POSIX_C_SOURCE 199309L
#include "device/cuda/gemm/autotune.h"

#include <time.h>

enum { REPEATS = 2, FEW = 8, BUDGET_MS = 90, FORMS_MS = 600, TILES_MS = 200 };
enum { FINALISTS = 8, ALIKE = 2, ROUNDS = 12, TURN_US = 1500, HEAT_MS = 60, MAX_RUNS = 1000 };
#define LARGE_MS 0.08f /* products that take a share of a step worth the while */
#define HOPELESS 1.15f /* so much behind the best, after one run */
#define CLOSE 1.04f    /* to the best by turns */
#define NEVER 1e30f

/* Puts the i-th of those that are compared into the queue. */
typedef Err (*RunNth)(const void *what, int i);

enum { MAX_EVENTS = ROUNDS * FINALISTS + 1 };

typedef struct {
    DeviceQueue *q;
    cudaEvent_t event[MAX_EVENTS];
} Watch;

static void watch_close(Watch *w)
{
    for (int i = 0; i < MAX_EVENTS; i++)
        if (w->event[i]) (void)cudaEventDestroy(w->event[i]);
}

static Err watch_open(DeviceQueue *q, Watch *w)
{
    *w = (Watch){.q = q};
    for (int i = 0; i < MAX_EVENTS; i++) {
        const cudaError_t status = cudaEventCreate(&w->event[i]);
        if (status == cudaSuccess) continue;
        watch_close(w);
        return cuda_failed(status, "cudaEventCreate");
    }
    return OK;
}

static void watch_mark(const Watch *w, int i) { (void)cudaEventRecord(w->event[i], w->q->stream); }

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static Err run_times(RunNth run, const void *what, int i, int times)
{
    for (int k = 0; k < times; k++) TRY(run(what, i));
    return OK;
}

/* Milliseconds of one run; NEVER where it does not run. */
static float time_once(const Watch *w, RunNth run, const void *what, int i)
{
    float ms = NEVER;
    watch_mark(w, 0);
    if (run(what, i) != OK) return NEVER;
    watch_mark(w, 1);
    if (cudaEventSynchronize(w->event[1]) != cudaSuccess) return NEVER;
    (void)cudaEventElapsedTime(&ms, w->event[0], w->event[1]);
    return ms;
}

static int runs_in(float ms, float each)
{
    const int n = (int)(ms / each) + 1;
    return n < MAX_RUNS ? n : MAX_RUNS;
}

/* Milliseconds of the first n by turns, as means; ms comes in with a guess of each. */
static void time_turns(const Watch *w, RunNth run, const void *what, int n, float *ms)
{
    const bool large = ms[0] > LARGE_MS;
    int runs[FINALISTS], mark = 0;
    for (int i = 0; i < n; i++) runs[i] = large ? runs_in(1e-3f * TURN_US, ms[i]) : 1;
    if (large) (void)run_times(run, what, 0, runs_in(HEAT_MS, ms[0]));
    watch_mark(w, mark);
    for (int turn = 0; turn < ROUNDS * n; turn++) {
        (void)run_times(run, what, turn % n, runs[turn % n]);
        watch_mark(w, ++mark);
    }
    if (cudaEventSynchronize(w->event[mark]) != cudaSuccess) return;
    for (int i = 0; i < n; i++) ms[i] = 0;
    for (int turn = 0; turn < ROUNDS * n; turn++) {
        float all = NEVER;
        (void)cudaEventElapsedTime(&all, w->event[turn], w->event[turn + 1]);
        ms[turn % n] += all / (float)(ROUNDS * runs[turn % n]);
    }
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
    if (run_entry(r, i) != OK) return NEVER; /* warms up */
    float least = time_once(&r->watch, run_entry, r, i);
    for (int k = 0; k < REPEATS && least < r->least * HOPELESS; k++) {
        const float ms = time_once(&r->watch, run_entry, r, i);
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

/* The fastest, fastest first, and no more than ALIKE of one tile. */
static int find_finalists(Race *r)
{
    const Field *f = r->f;
    int n = 0;
    for (; n < FINALISTS; n++) {
        int best = -1;
        for (int i = 0; i < r->tried; i++) {
            bool is_in = f->ms[i] >= r->least * HOPELESS;
            int alike = 0;
            for (int k = 0; k < n && !is_in; k++) {
                alike += same_tile(&f->algo[i], &f->algo[r->entry[k]]);
                is_in = i == r->entry[k] || alike == ALIKE;
            }
            if (!is_in && (best < 0 || f->ms[i] < f->ms[best])) best = i;
        }
        if (best < 0) break;
        r->entry[n] = best;
    }
    return n;
}

/* The fastest; and of a large product, those that it is not sure of. */
static Err decide(Race *r)
{
    float ms[FINALISTS];
    cublasLtMatmulAlgo_t last[TRIED];
    const int n = find_finalists(r);
    int close = 0;
    for (int i = 0; i < n; i++) ms[i] = r->f->ms[r->entry[i]];
    if (n > 1) time_turns(&r->watch, run_finalist, r, n, ms);
    r->c->algo = r->f->algo[n > 0 ? r->entry[least_of(ms, n)] : r->best];
    const float most = n > 0 ? CLOSE * ms[least_of(ms, n)] : 0;
    for (; close < TRIED; close++) {
        const int i = n > 0 ? least_of(ms, n) : 0;
        if (n == 0 || ms[i] > most) break;
        last[close] = r->f->algo[r->entry[i]];
        ms[i] = NEVER;
    }
    return close > 1 && most > LARGE_MS ? trial_open(r->c, last, close) : OK;
}

static Err race(Race *r)
{
    Field *f = r->f;
    DeviceQueue *q = r->watch.q;
    r->least = NEVER;
    r->until = now_ms() + (r->c->shape.point ? FORMS_MS : BUDGET_MS);
    run_field(r);
    if (r->c->shape.point) field_forms(q, r->c, f);
    run_field(r);
    if (now_ms() < r->until) field_others(q, r->c, f);
    run_field(r);
    if (r->least > LARGE_MS) {
        r->until = now_ms() + (r->c->shape.point ? FORMS_MS : TILES_MS);
        (r->c->shape.point ? field_all_tiles : field_tiles)(q, r->c, &f->algo[r->best], f);
    }
    run_field(r);
    if (now_ms() < r->until) field_variants(q, r->c, &f->algo[r->best], f);
    run_field(r);
    return decide(r);
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
    Err err = watch_open(q, &r.watch);
    if (err == OK) {
        err = race(&r);
        watch_close(&r.watch);
    }
    if (kept) CUDA_TRY(cudaFree(r.with.d));
    return err;
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

Err choices_fastest(DeviceQueue *q, const ChoiceRun *way, int n, const void *what, int *out)
{
    const Ways ways = {way, what};
    float ms[FINALISTS] = {0};
    bool all = true;
    Watch w;
    MUST(n <= FINALISTS, "%d ways", n);
    TRY(watch_open(q, &w));
    for (int i = 0; i < n; i++) {
        ms[i] = time_once(&w, run_way, &ways, i);
        all = all && ms[i] < NEVER;
    }
    if (all) time_turns(&w, run_way, &ways, n, ms);
    watch_close(&w);
    *out = least_of(ms, n);
    return OK;
}
