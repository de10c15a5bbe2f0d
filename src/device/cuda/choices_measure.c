/* choices_measure.c -- the fastest of several algorithms, by the clock.
 *
 * First those that cuBLASLt suggests, then others, then variants of the best so far, as long as the
 * time for one shape lasts: a job has some fifteen, and must not wait for them. An algorithm that is
 * far behind after one run is not run again.
 *
 * A card at work lowers its clock to stay within its power, so who comes later looks slower. So the
 * fastest few run once more, by turns; and of large products, those that are still close each run for
 * a while alone, until the clock is what their own power makes it: in a step, who needs less power is
 * faster. */
#define _POSIX_C_SOURCE 199309L
#include "device/cuda/choices.h"

#include <time.h>

enum { REPEATS = 2, FEW = 8, BUDGET_MS = 90, FORMS_MS = 400 };
enum { FINALISTS = 6, LEAST_ROUNDS = 3, MOST_ROUNDS = 12, ROUNDS_MS = 40 };
enum { SETTLE_MS = 30, ALONE_MS = 40 };
#define LARGE_MS 0.40f /* products that take a share of a step worth the while */
#define CLOSE 1.05f    /* to the best of the rounds */
#define HOPELESS 1.15f /* so much behind the best, after one run */
#define NEVER 1e30f

typedef struct {
    DeviceQueue *q;
    Choice *c;
    Operands with;
    cudaEvent_t event[2];
    double until;    /* ms */
    float least;     /* of the best so far */
    int best, tried; /* of the field */
} Race;

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Milliseconds of one run; NEVER where the algorithm does not run. */
static float time_once(const Race *r, bool warm_up)
{
    float ms = NEVER;
    if (warm_up && choice_run(r->q, r->c, &r->with) != OK) return NEVER;
    (void)cudaEventRecord(r->event[0], r->q->stream);
    if (choice_run(r->q, r->c, &r->with) != OK) return NEVER;
    (void)cudaEventRecord(r->event[1], r->q->stream);
    if (cudaEventSynchronize(r->event[1]) != cudaSuccess) return NEVER;
    (void)cudaEventElapsedTime(&ms, r->event[0], r->event[1]);
    return ms;
}

static float time_of(const Race *r)
{
    float least = time_once(r, true);
    for (int i = 0; i < REPEATS && least < r->least * HOPELESS; i++) {
        const float ms = time_once(r, false);
        if (ms < least) least = ms;
    }
    return least;
}

/* Those of the field that were not tried yet; the first few in any case, the rest while there is
 * time. */
static void run_field(Race *r, Field *f)
{
    for (; r->tried < f->n; r->tried++) {
        if (r->tried >= FEW && now_ms() > r->until) return;
        r->c->algo = f->algo[r->tried];
        const float ms = f->ms[r->tried] = time_of(r);
        if (ms == NEVER) (void)cudaGetLastError(); /* it does not run: that is all we ask */
        if (ms >= r->least) continue;
        r->least = ms;
        r->best = r->tried;
    }
}

/* The fastest of those tried, fastest first. */
static int finalists(const Race *r, const Field *f, int out[FINALISTS])
{
    int n = 0;
    for (int i = 0; i < r->tried; i++) {
        int at = n;
        for (; at > 0 && f->ms[out[at - 1]] > f->ms[i]; at--)
            if (at < FINALISTS) out[at] = out[at - 1];
        if (at < FINALISTS && f->ms[i] < r->least * HOPELESS) {
            out[at] = i;
            if (n < FINALISTS) n++;
        }
    }
    return n;
}

/* Milliseconds of the finalists, as means over rounds. */
static void run_rounds(Race *r, const Field *f, const int *entry, int n, float *ms)
{
    const double until = now_ms() + ROUNDS_MS;
    int rounds = 0;
    for (int i = 0; i < n; i++) ms[i] = 0;
    for (; rounds < LEAST_ROUNDS || (rounds < MOST_ROUNDS && now_ms() < until); rounds++)
        for (int i = 0; i < n; i++) {
            r->c->algo = f->algo[entry[i]];
            ms[i] += time_once(r, false);
        }
    for (int i = 0; i < n; i++) ms[i] /= (float)rounds;
}

/* Milliseconds of one run among many; `guess` of them says how many. */
static float time_alone(const Race *r, float guess)
{
    const int settle = (int)(SETTLE_MS / guess), runs = (int)(ALONE_MS / guess) + 1;
    float ms = NEVER;
    for (int i = 0; i < settle + runs; i++) {
        if (i == settle) (void)cudaEventRecord(r->event[0], r->q->stream);
        if (choice_run(r->q, r->c, &r->with) != OK) return NEVER;
    }
    (void)cudaEventRecord(r->event[1], r->q->stream);
    if (cudaEventSynchronize(r->event[1]) != cudaSuccess) return NEVER;
    (void)cudaEventElapsedTime(&ms, r->event[0], r->event[1]);
    return ms / (float)runs;
}

static int least_of(const float *ms, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (ms[i] < ms[best]) best = i;
    return best;
}

static int last_of(Race *r, const Field *f)
{
    float ms[FINALISTS];
    int entry[FINALISTS];
    const int n = finalists(r, f, entry);
    if (n < 2) return n ? entry[0] : r->best;
    run_rounds(r, f, entry, n, ms);
    const float least = ms[least_of(ms, n)];
    for (int i = 0; i < n && least > LARGE_MS; i++) {
        r->c->algo = f->algo[entry[i]];
        ms[i] = ms[i] < least * CLOSE ? time_alone(r, ms[i]) : NEVER;
    }
    return entry[least_of(ms, n)];
}

static void race(Race *r, Field *f)
{
    r->least = NEVER;
    r->until = now_ms() + (r->c->shape.point ? FORMS_MS : BUDGET_MS);
    run_field(r, f);
    if (r->c->shape.point) field_forms(r->q, r->c, f);
    run_field(r, f);
    if (now_ms() < r->until) field_others(r->q, r->c, f);
    run_field(r, f);
    if (now_ms() < r->until) field_variants(r->q, r->c, &f->algo[r->best], f);
    run_field(r, f);
    r->c->algo = f->algo[last_of(r, f)];
}

/* What is kept in d must not be added to over and over: it is timed on a copy's worth of other
 * memory, and where there is none, the first suggestion stays. */
Err choice_measure(DeviceQueue *q, Choice *c, const Operands *with, Field *f)
{
    const Shape *s = &c->shape;
    Race r = {.q = q, .c = c, .with = *with};
    const bool kept = s->adds && (!s->c_step || with->c == with->d);
    const size_t bytes = (size_t)(s->columns * s->d_step) * dtype_bytes((DType)s->out_type);
    if (kept && cudaMalloc(&r.with.d, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return OK;
    }
    CUDA_TRY(cudaEventCreate(&r.event[0]));
    CUDA_TRY(cudaEventCreate(&r.event[1]));
    race(&r, f);
    (void)cudaEventDestroy(r.event[0]);
    (void)cudaEventDestroy(r.event[1]);
    if (kept) CUDA_TRY(cudaFree(r.with.d));
    return OK;
}

Err choices_time(DeviceQueue *q, Err (*run)(const void *), const void *what, float *ms)
{
    cudaEvent_t event[2];
    CUDA_TRY(cudaEventCreate(&event[0]));
    CUDA_TRY(cudaEventCreate(&event[1]));
    *ms = NEVER;
    for (int i = 0; i <= REPEATS; i++) {
        float one;
        CUDA_TRY(cudaEventRecord(event[0], q->stream));
        TRY(run(what));
        CUDA_TRY(cudaEventRecord(event[1], q->stream));
        CUDA_TRY(cudaEventSynchronize(event[1]));
        CUDA_TRY(cudaEventElapsedTime(&one, event[0], event[1]));
        if (i > 0 && one < *ms) *ms = one; /* the first warms up */
    }
    (void)cudaEventDestroy(event[0]);
    (void)cudaEventDestroy(event[1]);
    return OK;
}
