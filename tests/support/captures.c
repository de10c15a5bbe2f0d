/* captures.c -- runs steps of one rank and collects all that can be compared. */
#include "support/captures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "support/expect.h"

typedef struct {
    const CapturePlan *p;
    CaptureResult *out;
    Arena arena;
    Job job, valid_job;
    Rank rank, valid;
} Work;

static Err compile(Work *k)
{
    JobSettings set = k->p->set;
    set.note_freed = true;
    TRY(arena_open(&k->arena, "captures", ARENA_PLENTY));
    TRY(job_compile(&set, &k->arena, &k->job));
    set.kind = JOB_LOSS;
    return k->p->validates ? job_compile(&set, &k->arena, &k->valid_job) : OK;
}

static Err open_ranks(Work *k)
{
    RankSettings set = {.program = &k->job.linked,
                        .device = k->p->device,
                        .deterministic = true,
                        .optim = k->p->set.optim,
                        .poison = true,
                        .capture = k->p->capture};
    TRY(rank_open(&k->rank, &set));
    TRY(rank_init_weights(&k->rank, 11));
    set.program = &k->valid_job.linked;
    set.state_of = &k->rank;
    return k->p->validates ? rank_open(&k->valid, &set) : OK;
}

/* Live rows do not depend on the step, unlike those of test_job_batch; live tokens do. */
static void fill(const Work *k, Rank *r, int step)
{
    const CapturePlan *p = k->p;
    for (int m = 0; m < p->set.micros; m++) {
        TestBatch b = test_job_batch(&p->set, 16 * step + m);
        const bool is_short =
            (p->short_from && step >= p->short_from) || (p->alternating && step % 2);
        b.rows = k->job.model.rows - m % 3 - (m == 0 && is_short ? 2 : 0);
        rank_fill_batch(r, m, &b);
        const Tensor weights = rank_input(r, m, INPUT_WEIGHTS);
        for (int64_t i = 0; m == 1 && i < step % 4; i++) real_set(&weights, i, 0.0);
        if (m == 1 && step == p->bad) real_set(&weights, 4, (double)INFINITY);
    }
}

static Err read_state(Work *k, char **out)
{
    const int parts = 1 + k->job.linked.n_moments;
    size_t at = 0;
    *out = malloc(k->job.linked.bytes[ARENA_STATE] + 1);
    if (!*out) return err_fail(ERR_NOMEM, "no memory for the state");
    for (int u = 0; u < k->job.model.n_packs; u++)
        for (int i = 0; i < parts; i++) {
            const ParamPart part = i ? (ParamPart)(PART_MOMENT1 + i - 1) : PART_MASTER;
            const Tensor home = rank_home(&k->rank, u, part);
            const size_t bytes = (size_t)home.n[0] * dtype_bytes(home.dtype);
            TRY(rank_read(&k->rank, home.data, bytes, *out + at));
            at += bytes;
        }
    k->out->bytes = at;
    return OK;
}

static Err step(Work *k, int s)
{
    const CapturePlan *p = k->p;
    StepResult r;
    if (p->before) p->before(s);
    fill(k, &k->rank, s);
    TRY(rank_step(&k->rank, &(StepSettings){.step = s, .lr = 1e-2 / s}, &r));
    k->out->loss[s - 1] = r.loss;
    k->out->norm[s - 1] = r.grad_norm;
    k->out->skipped[s - 1] = r.skipped;
    if (s == p->reads) TRY(read_state(k, &k->out->state[0]));
    if (!p->validates) return OK;
    fill(k, &k->valid, CAPTURE_STEPS + 2 * s);
    TRY(rank_step(&k->valid, &(StepSettings){.step = 1}, &r));
    k->out->valid[s - 1] = r.loss;
    return OK;
}

static Err run(Work *k)
{
    TRY(compile(k));
    TRY(open_ranks(k));
    for (int s = 1; s <= CAPTURE_STEPS; s++) TRY(step(k, s));
    const char *refused = rank_capture_refused(&k->rank);
    snprintf(k->out->refused, sizeof k->out->refused, "%s", refused ? refused : "");
    k->out->captured = k->rank.capture.n_captured + k->valid.capture.n_captured;
    k->out->launched = k->rank.capture.n_launched + k->valid.capture.n_launched;
    return read_state(k, &k->out->state[1]);
}

Err captures_run(const CapturePlan *p, CaptureResult *out)
{
    Work k = {.p = p, .out = out};
    *out = (CaptureResult){0};
    const Err err = run(&k);
    rank_close(&k.valid);
    rank_close(&k.rank);
    arena_close(&k.arena);
    return err;
}

void captures_close(CaptureResult *r)
{
    for (int i = 0; i < 2; i++) free(r->state[i]);
}

static bool same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

void captures_same(const char *name, const CaptureResult *a, const CaptureResult *b)
{
    for (int s = 0; s < CAPTURE_STEPS; s++)
        if (!same_bits(a->loss[s], b->loss[s]) || !same_bits(a->norm[s], b->norm[s]) ||
            !same_bits(a->valid[s], b->valid[s]) || a->skipped[s] != b->skipped[s])
            fail_msg("%s: step %d: loss %.17g and %.17g, norm %.17g and %.17g, held out %.17g and "
                     "%.17g, skipped %d and %d",
                     name, s + 1, a->loss[s], b->loss[s], a->norm[s], b->norm[s], a->valid[s],
                     b->valid[s], a->skipped[s], b->skipped[s]);
    assert_int_equal(a->bytes, b->bytes);
    for (int i = 0; i < 2; i++)
        if (a->state[i] && memcmp(a->state[i], b->state[i], a->bytes) != 0)
            fail_msg("%s: weights or moments differ %s", name,
                     i ? "at the end" : "where they were read between steps");
}
