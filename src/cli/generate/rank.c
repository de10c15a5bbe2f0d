/* rank.c -- the work of one rank of `sheaf generate`: programs, memory, weights, then the
 * loop. Rank 0 prints. */
#include "cli/generate/generate.h"

#include <stdio.h>
#include "cli/machine.h"

typedef struct {
    GenerateRequest *g;
    WorldRank *world;
    SessionJobs jobs;
    Session session;
    TextStream stream;
    Team *team;
} GenerateRunner;

/* Adds the KV cache of this rank to the sums of the process. */
static void count_cache(GenerateRequest *g, int64_t bytes)
{
    int64_t most = atomic_load(&g->rank_cache_bytes);
    atomic_fetch_add(&g->cache_bytes, bytes);
    while (bytes > most && !atomic_compare_exchange_weak(&g->rank_cache_bytes, &most, bytes)) {
    }
}

static Err compile(GenerateRunner *r)
{
    InferContext *ctx = &r->g->infer;
    JobSettings base;
    TRY(infer_job(ctx, r->world, &base));
    TRY(session_compile(&base, &r->g->shape, r->world->arena, &r->jobs));
    atomic_fetch_add(&ctx->bytes, session_bytes(&r->jobs));
    count_cache(r->g, session_cache_bytes(&r->jobs));
    return infer_team(ctx, r->world, &r->team);
}

/* Prints model, device and memory before anything is allocated. */
static void print_plan(const GenerateRunner *r)
{
    char count[24], bytes[24], cache[24], most[24], device[DEVICE_TEXT_BYTES];
    const GenerateRequest *g = r->g;
    const InferContext *ctx = &g->infer;
    fprintf(stderr, "%s: %s parameters; %s, %s", ctx->source.dir,
            text_count((double)model_param_count(&r->jobs.call[0].model), count),
            device_text(ctx->device, device), dtype_name(r->jobs.call[0].model.dtype));
    if (ctx->launch.ranks > 1)
        fprintf(stderr, "; %d ranks of %lld threads", ctx->launch.ranks,
                (long long)ctx->config.run_threads);
    if (g->clip.n) {
        fprintf(stderr, "; %lld clip%s at once, %lld steps each; memory %s, known before the run\n",
                (long long)g->shape.sequences, g->shape.sequences == 1 ? "" : "s",
                (long long)g->clip.steps, text_bytes(atomic_load(&ctx->bytes), bytes));
        return;
    }
    fprintf(stderr,
            "; %lld sequence%s of up to %lld tokens at once; memory %s, including a KV cache of "
            "%s%s%s, "
            "known before the run\n",
            (long long)g->shape.sequences, g->shape.sequences == 1 ? "" : "s",
            (long long)g->shape.context, text_bytes(atomic_load(&ctx->bytes), bytes),
            text_bytes(atomic_load(&g->cache_bytes), cache),
            ctx->launch.ranks > 1 ? ", at most on one rank " : "",
            ctx->launch.ranks > 1 ? text_bytes(atomic_load(&g->rank_cache_bytes), most) : "");
    const int64_t trained =
        ctx->source.kind == SOURCE_HF ? 0 : ctx->source.manifest.scalars.seq_len;
    if (trained > 0 && g->shape.context > trained)
        fprintf(stderr,
                "the model was trained on sequences of %lld tokens; positions after that are "
                "untrained\n",
                (long long)trained);
}

/* Every rank opens a stream, because all must agree when a stop string ends a prompt. Only rank 0
 * prints. */
static Err open_stream(GenerateRunner *r)
{
    const GenerateRequest *g = r->g;
    r->stream = (TextStream){.tokenizer = g->infer.tokenizer,
                             .prompts = &g->prompts,
                             .n_stops = g->n_stops,
                             .no_text = g->infer.no_text,
                             .ids = g->ids,
                             .out = r->world->rank == 0 && !g->json ? stdout : NULL};
    for (int i = 0; i < g->n_stops; i++) r->stream.stop[i] = g->stop[i];
    return text_stream_open(&r->stream, g->max_tokens, r->world->arena);
}

static Err open_runner(GenerateRunner *r)
{
    const SessionSettings set = {&r->jobs, r->g->infer.device, r->world, r->team};
    if (!r->g->clip.n) TRY(open_stream(r));
    return session_open(&r->session, &set);
}

static Err generate(GenerateRunner *r)
{
    GenerateRequest *g = r->g;
    GenerateResult result;
    const GenerateSettings set = {.session = &r->session,
                                  .prompt = g->prompts.prompt,
                                  .n_prompts = g->prompts.n,
                                  .sample = g->sample,
                                  .max_tokens = g->max_tokens,
                                  .stop_token = g->infer.end,
                                  .n_stop_tokens = g->infer.n_end,
                                  .listener = {text_stream_token, text_stream_end, &r->stream},
                                  .stop = g->infer.stop,
                                  .arena = r->world->arena};
    TRY(generate_run(&set, &result));
    if (r->world->place != 0) return OK;
    g->result = result;
    g->stream = &r->stream;
    return r->world->rank == 0 && g->json ? generate_json(g) : OK;
}

/* The ranks agree after each phase that can fail, so that none waits in a collective for a rank
 * that has returned. */
static Err run_phases(GenerateRunner *r)
{
    InferContext *ctx = &r->g->infer;
    WorldRank *w = r->world;
    TRY(world_agree(w, ctx->prepared));
    TRY(world_agree(w, compile(r)));
    TRY(infer_start(ctx, w, "try fewer sequences at once (--batch), a smaller -n, or mesh.tp"));
    if (w->rank == 0) print_plan(r);
    TRY(world_agree(w, open_runner(r)));
    TRY(infer_load(ctx, w, &r->session.rank[0]));
    return r->g->clip.n ? generate_clips(r->g, &r->session, w) : generate(r);
}

Err generate_rank(WorldRank *w, void *request)
{
    GenerateRunner *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->g = request;
    r->world = w;
    const Err err = run_phases(r);
    if (w->place == 0) r->g->infer.agreed = w->agreed;
    world_leave(w, err); /* before the memory is freed, which other ranks may still read */
    session_close(&r->session);
    if (r->team) team_close(r->team);
    return err;
}
