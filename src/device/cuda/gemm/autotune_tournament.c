/* autotune_tournament.c -- the fastest of many candidates, by measurement.
 *
 *     first pass     suggestions, then further candidates until the time for the shape is used up.
 *                    A candidate that is CUTOFF times slower than the best after one run is
 *                    dropped; a run of LONG_MS or more is not repeated
 *     second pass    the fastest few, at most MAX_SAME_TILE of one tile, interleaved in rounds
 *
 * A job has about fifteen shapes, and its first step waits for them. With the times below the
 * search took less than five seconds for two models on an H200 (bench/README.md). Candidates of a
 * large GEMM that are still close become finalists (autotune_finalists.c).
 *
 * Under continuous load the GPU lowers its clock after about 50 ms to stay within its power limit,
 * and a training step runs at that clock. Therefore candidates of a large GEMM first run until the
 * clock has dropped. They are then timed in short interleaved slices without pauses, so that drift
 * affects all of them equally. */
#include "device/cuda/gemm/autotune.h"

#include "base/clock.h"

enum { REPEATS = 2, MIN_TIMED = 8, BUDGET_MS = 60, CONFIGS_MS = 250, TILES_MS = 90 };
enum {
    MAX_SEMIFINALISTS = 6,
    MAX_SAME_TILE = 2,
    ROUNDS = 6,
    SLICE_US = 1500,
    WARM_UP_MS = 25, /* the first pass loads the GPU too */
    MAX_RUNS = 1000
};
#define LARGE_MS 0.08f /* a GEMM from here on is worth a longer search */
#define LONG_MS 0.4f   /* the first pass times a run from here on once */
#define CUTOFF 1.15f   /* dropped if this much slower than the best, after one run */
#define CLOSE 1.04f    /* a finalist if within this factor of the best */
#define NEVER 1e30f

/* Launches candidate i. */
typedef Err (*RunCandidate)(const void *context, int i);

enum { MAX_EVENTS = ROUNDS * MAX_SEMIFINALISTS + 1 };

typedef struct {
    DeviceQueue *q;
    cudaEvent_t event[MAX_EVENTS];
} EventTimer;

static void timer_close(EventTimer *w)
{
    for (int i = 0; i < MAX_EVENTS; i++)
        if (w->event[i]) (void)cudaEventDestroy(w->event[i]);
}

static Err timer_open(DeviceQueue *q, EventTimer *w)
{
    *w = (EventTimer){.q = q};
    for (int i = 0; i < MAX_EVENTS; i++) {
        const cudaError_t status = cudaEventCreate(&w->event[i]);
        if (status == cudaSuccess) continue;
        timer_close(w);
        return cuda_failed(status, "cudaEventCreate");
    }
    return OK;
}

static void timer_record(const EventTimer *w, int i)
{
    (void)cudaEventRecord(w->event[i], w->q->stream);
}

static Err run_repeated(RunCandidate run, const void *context, int i, int times)
{
    for (int k = 0; k < times; k++) TRY(run(context, i));
    return OK;
}

/* Milliseconds of one run; NEVER if it fails. */
static float time_once(const EventTimer *w, RunCandidate run, const void *context, int i)
{
    float ms = NEVER;
    timer_record(w, 0);
    if (run(context, i) != OK) return NEVER;
    timer_record(w, 1);
    if (cudaEventSynchronize(w->event[1]) != cudaSuccess) return NEVER;
    (void)cudaEventElapsedTime(&ms, w->event[0], w->event[1]);
    return ms;
}

static int runs_in(float ms, float each)
{
    const int n = (int)(ms / each) + 1;
    return n < MAX_RUNS ? n : MAX_RUNS;
}

/* Mean milliseconds of the first n, run in interleaved slices. On entry ms holds an estimate of
 * each. */
static void time_interleaved(const EventTimer *w, RunCandidate run, const void *context, int n,
                             float *ms)
{
    const bool large = ms[0] > LARGE_MS;
    int runs[MAX_SEMIFINALISTS], event_index = 0;
    for (int i = 0; i < n; i++) runs[i] = large ? runs_in(1e-3f * SLICE_US, ms[i]) : 1;
    if (large) (void)run_repeated(run, context, 0, runs_in(WARM_UP_MS, ms[0]));
    timer_record(w, event_index);
    for (int slice = 0; slice < ROUNDS * n; slice++) {
        (void)run_repeated(run, context, slice % n, runs[slice % n]);
        timer_record(w, ++event_index);
    }
    if (cudaEventSynchronize(w->event[event_index]) != cudaSuccess) return;
    for (int i = 0; i < n; i++) ms[i] = 0;
    for (int slice = 0; slice < ROUNDS * n; slice++) {
        float all = NEVER;
        (void)cudaEventElapsedTime(&all, w->event[slice], w->event[slice + 1]);
        ms[slice % n] += all / (float)(ROUNDS * runs[slice % n]);
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
    EventTimer timer;
    GemmEntry *c;
    LtOperands operands;
    Candidates *f;
    int semifinalist[MAX_SEMIFINALISTS]; /* indices of candidates */
    double deadline_ms;                  /* end of the search */
    float least;                         /* ms of the best so far */
    int best, n_timed;                   /* of the candidates */
} Tournament;

static Err run_candidate(const void *tournament, int i)
{
    const Tournament *r = tournament;
    r->c->algo = r->f->algo[i];
    return gemm_entry_launch(r->timer.q, r->c, &r->operands);
}

static Err run_semifinalist(const void *tournament, int i)
{
    return run_candidate(tournament, ((const Tournament *)tournament)->semifinalist[i]);
}

static float time_candidate(const Tournament *r, int i)
{
    if (run_candidate(r, i) != OK) return NEVER; /* also warms up */
    float least = time_once(&r->timer, run_candidate, r, i);
    for (int k = 0; k < REPEATS && least < LONG_MS && least < r->least * CUTOFF; k++) {
        const float ms = time_once(&r->timer, run_candidate, r, i);
        if (ms < least) least = ms;
    }
    return least;
}

/* Times the candidates that were not timed yet: the first MIN_TIMED always, the others until the
 * deadline. */
static void time_candidates(Tournament *r)
{
    for (; r->n_timed < r->f->n; r->n_timed++) {
        if (r->n_timed >= MIN_TIMED && 1e3 * now_s() > r->deadline_ms) return;
        const float ms = r->f->ms[r->n_timed] = time_candidate(r, r->n_timed);
        /* a candidate that fails to launch is only excluded */
        if (ms == NEVER) (void)cudaGetLastError();
        if (ms >= r->least) continue;
        r->least = ms;
        r->best = r->n_timed;
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

/* Finds the fastest candidates, in order, at most MAX_SAME_TILE of one tile. */
static int find_semifinalists(Tournament *r)
{
    const Candidates *f = r->f;
    int n = 0;
    for (; n < MAX_SEMIFINALISTS; n++) {
        int best = -1;
        for (int i = 0; i < r->n_timed; i++) {
            bool is_in = f->ms[i] >= r->least * CUTOFF;
            int same = 0;
            for (int k = 0; k < n && !is_in; k++) {
                same += same_tile(&f->algo[i], &f->algo[r->semifinalist[k]]);
                is_in = i == r->semifinalist[k] || same == MAX_SAME_TILE;
            }
            if (!is_in && (best < 0 || f->ms[i] < f->ms[best])) best = i;
        }
        if (best < 0) break;
        r->semifinalist[n] = best;
    }
    return n;
}

/* Decides for the fastest; close candidates of a large GEMM become finalists. */
static Err decide(Tournament *r)
{
    float ms[MAX_SEMIFINALISTS];
    cublasLtMatmulAlgo_t last[MAX_FINALISTS];
    const int n = find_semifinalists(r);
    int close = 0;
    for (int i = 0; i < n; i++) ms[i] = r->f->ms[r->semifinalist[i]];
    if (n > 1) time_interleaved(&r->timer, run_semifinalist, r, n, ms);
    r->c->algo = r->f->algo[n > 0 ? r->semifinalist[least_of(ms, n)] : r->best];
    const float most = n > 0 ? CLOSE * ms[least_of(ms, n)] : 0;
    for (; close < MAX_FINALISTS; close++) {
        const int i = n > 0 ? least_of(ms, n) : 0;
        if (n == 0 || ms[i] > most) break;
        last[close] = r->f->algo[r->semifinalist[i]];
        ms[i] = NEVER;
    }
    return close > 1 && most > LARGE_MS ? finalists_open(r->c, last, close) : OK;
}

static Err run_tournament(Tournament *r)
{
    Candidates *f = r->f;
    DeviceQueue *q = r->timer.q;
    r->least = NEVER;
    r->deadline_ms = 1e3 * now_s() + (r->c->shape.epilogue ? CONFIGS_MS : BUDGET_MS);
    time_candidates(r);
    if (r->c->shape.epilogue) candidates_configs(q, r->c, f);
    time_candidates(r);
    if (1e3 * now_s() < r->deadline_ms) candidates_more(q, r->c, f);
    time_candidates(r);
    if (r->least > LARGE_MS) {
        r->deadline_ms = 1e3 * now_s() + (r->c->shape.epilogue ? CONFIGS_MS : TILES_MS);
        (r->c->shape.epilogue ? candidates_all_tiles : candidates_tiles)(q, r->c, &f->algo[r->best],
                                                                         f);
    }
    time_candidates(r);
    if (1e3 * now_s() < r->deadline_ms) candidates_variants(q, r->c, &f->algo[r->best], f);
    time_candidates(r);
    return decide(r);
}

/* A GEMM that accumulates into d is timed on a temporary buffer, so that d is added to only once.
 * If there is no memory for that, the first suggestion stays. */
Err gemm_entry_tune(DeviceQueue *q, GemmEntry *c, const LtOperands *operands, Candidates *f)
{
    const LtShape *s = &c->shape;
    Tournament r = {.c = c, .operands = *operands, .f = f};
    const bool kept = s->accumulates && (!s->c_ld || operands->c == operands->d);
    const size_t bytes = (size_t)(s->columns * s->d_ld) * dtype_bytes((DType)s->out_type);
    if (kept) TRY(cuda_borrow(q->context, bytes, &r.operands.d));
    if (!r.operands.d) return OK;
    Err err = timer_open(q, &r.timer);
    if (err == OK) {
        err = run_tournament(&r);
        timer_close(&r.timer);
    }
    if (kept) TRY(cuda_return(r.operands.d));
    return err;
}

/* ---- fusions ---- */

typedef struct {
    const FusionRun *run;
    const void *context;
} FusionRuns;

static Err run_fusion(const void *fusions, int i)
{
    const FusionRuns *w = fusions;
    return w->run[i](w->context);
}

Err autotuner_fastest(DeviceQueue *q, const FusionRun *run, int n, const void *context, int *out)
{
    const FusionRuns fusions = {run, context};
    float ms[MAX_SEMIFINALISTS] = {0};
    bool all = true;
    EventTimer w;
    MUST(n <= MAX_SEMIFINALISTS, "%d fusions", n);
    TRY(timer_open(q, &w));
    for (int i = 0; i < n; i++) {
        ms[i] = time_once(&w, run_fusion, &fusions, i);
        all = all && ms[i] < NEVER;
    }
    if (all) time_interleaved(&w, run_fusion, &fusions, n, ms);
    timer_close(&w);
    *out = least_of(ms, n);
    return OK;
}
