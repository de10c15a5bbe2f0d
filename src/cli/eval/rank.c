/* rank.c -- the work of one rank of `sheaf eval`: programs, memory, weights, then the
 * passes. */
#define _DEFAULT_SOURCE
#include "cli/eval/eval.h"

#include <string.h>
#include "base/clock.h"

typedef struct {
    EvalRequest *e;
    WorldRank *world;
    Job job;
    Scorer scorer;
    Team *team;
    double *loss;
} EvalRunner;

static Err compile(EvalRunner *r)
{
    InferContext *ctx = &r->e->infer;
    JobSettings base;
    TRY(infer_job(ctx, r->world, &base));
    const JobSettings set = score_settings(&base, r->e->windows.seq_len, r->e->micros);
    TRY(job_compile(&set, r->world->arena, &r->job));
    for (int a = 0; a < N_ARENAS; a++)
        atomic_fetch_add(&ctx->bytes, (int64_t)r->job.linked.bytes[a]);
    atomic_fetch_add(&ctx->bytes, (int64_t)r->job.linked.pinned_bytes);
    return infer_team(ctx, r->world, &r->team);
}

/* All ranks receive all losses; the report uses those of the first rank of the process. */
static Err open_runner(EvalRunner *r)
{
    const ScorerSettings set = {&r->job, r->e->infer.device, r->world, r->team};
    TRY(ARENA_NEW(r->world->arena, r->e->n_sequences, &r->loss));
    return scorer_open(&r->scorer, &set, r->world->arena);
}

/* The sequence source of the scorer. An interrupt is an error: a mean over some of the sequences
 * would look like a result. */
static Err next(void *context, int64_t i, ScoreSequence *out)
{
    const EvalRequest *e = context;
    int64_t first, n, from;
    if (e->infer.stop && *e->infer.stop)
        return err_fail(ERR_IO, "eval: interrupted after %lld of %lld sequences", (long long)i,
                        (long long)e->n_sequences);
    if (e->tasks) {
        *out = e->sequence[i];
        return OK;
    }
    windows_at(&e->windows, i, &first, &n, &from);
    *out = (ScoreSequence){e->token + first, n, from};
    return OK;
}

static Err run_phases(EvalRunner *r)
{
    EvalRequest *e = r->e;
    InferContext *ctx = &e->infer;
    WorldRank *w = r->world;
    TRY(world_agree(w, ctx->prepared));
    TRY(world_agree(w, compile(r)));
    TRY(infer_start(ctx, w, "try a smaller --seq-len, or mesh.tp"));
    TRY(world_agree(w, open_runner(r)));
    TRY(infer_load(ctx, w, &r->scorer.rank));
    const double before = now_s();
    const ScoreSource source = {next, e, e->n_sequences};
    TRY(scorer_run(&r->scorer, &source, r->loss));
    if (w->place != 0) return OK;
    e->seconds = now_s() - before;
    memcpy(e->loss, r->loss, (size_t)e->n_sequences * sizeof *e->loss);
    return OK;
}

Err eval_rank(WorldRank *w, void *request)
{
    EvalRunner *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->e = request;
    r->world = w;
    const Err err = run_phases(r);
    if (w->place == 0) r->e->infer.agreed = w->agreed;
    world_leave(w, err); /* before the memory is freed, which other ranks may still read */
    scorer_close(&r->scorer);
    if (r->team) team_close(r->team);
    return err;
}
