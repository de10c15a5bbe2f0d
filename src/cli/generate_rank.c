/* generate_rank.c -- what each rank of `sheaf generate` does: its programs, memory, weights, and the
 * loop. Rank 0 speaks. */
#include "cli/generate.h"

#include <stdio.h>
#include "cli/machine.h"

typedef struct {
    GenerateRequest *g;
    WorldRank *world;
    SessionJobs jobs;
    Session session;
    Speaker speaker;
    Team *team;
} Runner;

static Err compile(Runner *r)
{
    ModelUse *u = &r->g->use;
    JobSettings base;
    TRY(use_job(u, r->world, &base));
    TRY(session_compile(&base, &r->g->shape, r->world->arena, &r->jobs));
    atomic_fetch_add(&u->bytes, session_bytes(&r->jobs));
    atomic_fetch_add(&r->g->cache_bytes, session_cache_bytes(&r->jobs));
    return use_team(u, r->world, &r->team);
}

/* Before anything is allocated. */
static void announce(const Runner *r)
{
    char count[24], bytes[24], cache[24];
    const GenerateRequest *g = r->g;
    const ModelUse *u = &g->use;
    fprintf(stderr, "%s: %s parameters; %s, %s", u->source.dir,
            text_count((double)model_param_count(&r->jobs.call[0].model), count),
            machine_device_text(u->device), dtype_name(r->jobs.call[0].model.dtype));
    if (u->launch.ranks > 1)
        fprintf(stderr, "; %d ranks of %lld threads", u->launch.ranks,
                (long long)u->config.run_threads);
    fprintf(stderr,
            "; %lld sequence%s of up to %lld tokens at once; memory %s, of it %s for keys and "
            "values, known before the run\n",
            (long long)g->shape.sequences, g->shape.sequences == 1 ? "" : "s",
            (long long)g->shape.context, text_bytes(atomic_load(&u->bytes), bytes),
            text_bytes(atomic_load(&g->cache_bytes), cache));
    const int64_t trained = u->source.kind == SOURCE_HF ? 0 : u->source.manifest.scalars.seq_len;
    if (trained > 0 && g->shape.context > trained)
        fprintf(stderr,
                "it was trained on sequences of %lld tokens: positions behind that are new to it\n",
                (long long)trained);
}

static Err open_speaker(Runner *r)
{
    const GenerateRequest *g = r->g;
    r->speaker = (Speaker){.tokenizer = g->use.tokenizer,
                           .prompts = &g->prompts,
                           .n_stops = g->n_stops,
                           .no_text = g->use.no_text,
                           .ids = g->ids,
                           .out = r->world->rank == 0 && !g->json ? stdout : NULL};
    for (int i = 0; i < g->n_stops; i++) r->speaker.stop[i] = g->stop[i];
    return speaker_open(&r->speaker, g->max_tokens, r->world->arena);
}

static Err open_runner(Runner *r)
{
    const SessionSettings set = {&r->jobs, r->g->use.device, r->world, r->team};
    TRY(open_speaker(r));
    return session_open(&r->session, &set);
}

static Err generate(Runner *r)
{
    GenerateRequest *g = r->g;
    GenerateResult result;
    const GenerateSettings set = {.session = &r->session,
                                  .prompt = g->prompts.prompt,
                                  .n_prompts = g->prompts.n,
                                  .sample = g->sample,
                                  .max_tokens = g->max_tokens,
                                  .stop_token = g->use.end,
                                  .n_stop_tokens = g->use.n_end,
                                  .listener = {speaker_token, speaker_end, &r->speaker},
                                  .stop = g->use.stop,
                                  .arena = r->world->arena};
    TRY(generate_run(&set, &result));
    if (r->world->place != 0) return OK;
    g->result = result;
    g->speaker = &r->speaker;
    return r->world->rank == 0 && g->json ? generate_json(g) : OK;
}

static Err run_phases(Runner *r)
{
    ModelUse *u = &r->g->use;
    WorldRank *w = r->world;
    TRY(world_agree(w, u->prepared));
    TRY(world_agree(w, compile(r)));
    TRY(use_memory(u, w, "try fewer sequences at once (--batch), a smaller -n, or mesh.tp"));
    if (w->rank == 0) announce(r);
    TRY(world_agree(w, open_runner(r)));
    TRY(use_load(u, w, &r->session.rank[0]));
    return generate(r);
}

Err generate_rank(WorldRank *w, void *request)
{
    Runner *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->g = request;
    r->world = w;
    const Err err = run_phases(r);
    if (w->place == 0) r->g->use.agreed = w->agreed;
    world_leave(w, err);
    session_close(&r->session);
    if (r->team) team_close(r->team);
    return err;
}
