/* generate.c -- the generation loop of one rank. */
#define _DEFAULT_SOURCE
#include "infer/generate.h"

#include <string.h>
#include "base/clock.h"
#include "world/scalars.h"

/* The first number that the sampling rank broadcasts; a token for each requested row follows. */
enum { CHOICE_CONTINUE, CHOICE_STOP, CHOICE_FAILED };

/* One of the session's sequences, and the prompt that it continues. */
typedef struct {
    int64_t prompt; /* index; -1: the sequence is free */
    int64_t n;      /* tokens of the sequence */
    int64_t filled; /* of these, in the KV cache */
    int32_t *token; /* [context + 1] */
} ActiveSequence;

typedef struct {
    const GenerateSettings *s;
    const SessionShape *shape;
    WorldRank *world;
    Sampler sampler;
    ActiveSequence *sequence; /* [sequences] */
    int64_t next;             /* first prompt without a sequence */
    SessionRow *row;
    int64_t n_rows;
    int64_t *sampled; /* [sequences]: sequences whose next token this call samples */
    int64_t n_sampled;
    bool prefill;    /* the current call is a prefill */
    int32_t *choice; /* [1 + sequences]: registered as ARENA_CHOICE */
    GenerateResult result;
} Generator;

const char *generate_end_name(GenerateEnd why)
{
    static const char *const name[N_ENDS] = {"stop", "eos", "length", "context", "interrupt"};
    return name[why];
}

static Err open_generator(Generator *g)
{
    const GenerateSettings *s = g->s;
    const Job *job = &s->session->settings.jobs->call[0];
    const int64_t sequences = g->shape->sequences;
    const size_t bytes = (size_t)(1 + sequences) * sizeof *g->choice;
    TRY(sampler_open(&g->sampler, &s->sample, job->settings.config->vocab, s->arena));
    TRY(ARENA_NEW(s->arena, sequences, &g->sequence));
    TRY(ARENA_NEW(s->arena, g->shape->rows, &g->row));
    TRY(ARENA_NEW(s->arena, sequences, &g->sampled));
    TRY(ARENA_NEW(s->arena, 1 + sequences, &g->choice));
    for (int64_t i = 0; i < sequences; i++) {
        TRY(ARENA_NEW(s->arena, g->shape->context + 1, &g->sequence[i].token));
        g->sequence[i].prompt = -1;
    }
    return comm_register(g->world->comm, ARENA_CHOICE, g->choice, bytes);
}

static void end_sequence(Generator *g, ActiveSequence *p, GenerateEnd why)
{
    if (g->s->listener.end) g->s->listener.end(g->s->listener.context, p->prompt, why);
    p->prompt = -1;
}

/* Assigns waiting prompts to free sequences. */
static void admit(Generator *g)
{
    for (int64_t i = 0; i < g->shape->sequences && g->next < g->s->n_prompts; i++) {
        ActiveSequence *p = &g->sequence[i];
        if (p->prompt >= 0) continue;
        const Prompt *prompt = &g->s->prompt[g->next];
        MUST(prompt->n >= 1 && prompt->n <= g->shape->context, "%lld tokens", (long long)prompt->n);
        memcpy(p->token, prompt->token, (size_t)prompt->n * sizeof *p->token);
        p->prompt = g->next++;
        p->n = prompt->n;
        p->filled = 0;
    }
}

/* Adds the rows of a sequence that are not in the KV cache, while the call has room. Logits are
 * requested for its last row. */
static void add_rows(Generator *g, int64_t at)
{
    ActiveSequence *p = &g->sequence[at];
    if (!g->shape->cached) p->filled = 0;
    for (; p->filled < p->n && g->n_rows < g->shape->rows; p->filled++) {
        const bool last = p->filled == p->n - 1;
        g->row[g->n_rows++] = (SessionRow){at, p->filled, p->token[p->filled], last};
        if (last) g->sampled[g->n_sampled++] = at;
    }
}

/* True if the KV cache lacks more than the newest token. */
static bool needs_prefill(const ActiveSequence *p)
{
    return p->prompt >= 0 && (p->filled == 0 || p->n - p->filled > 1);
}

/* Selects the rows of the next call. Prefill has priority: no sequence decodes before all prompts
 * are in the KV cache. */
static void plan_call(Generator *g)
{
    g->n_rows = g->n_sampled = 0;
    g->prefill = false;
    for (int64_t i = 0; i < g->shape->sequences; i++)
        g->prefill = g->prefill || needs_prefill(&g->sequence[i]);
    for (int64_t i = 0; i < g->shape->sequences; i++)
        if (g->sequence[i].prompt >= 0 && needs_prefill(&g->sequence[i]) == g->prefill)
            add_rows(g, i);
}

static Err draw_all(Generator *g, const Tensor *logits)
{
    for (int64_t i = 0; i < g->n_sampled; i++) {
        const ActiveSequence *p = &g->sequence[g->sampled[i]];
        Tensor row = {.dtype = logits->dtype, .ndim = 1, .n = {logits->n[1]}, .stride = {1}};
        row.stride[0] = logits->stride[1];
        row.data = (char *)logits->data + (size_t)(i * logits->stride[0]) * dtype_bytes(row.dtype);
        const RandomDraw draw = {p->token, p->n, p->prompt};
        TRY(sampler_draw(&g->sampler, &row, &draw, &g->choice[1 + i]));
    }
    return OK;
}

/* Samples on one rank and broadcasts the tokens; an error ends all ranks. */
static Err choose(Generator *g, const Tensor *logits)
{
    const Session *session = g->s->session;
    const bool mine = g->world->rank == session->sampling_rank;
    Err err = OK;
    if (mine) {
        err = draw_all(g, logits);
        g->choice[0] = err != OK                   ? CHOICE_FAILED
                       : g->s->stop && *g->s->stop ? CHOICE_STOP
                                                   : CHOICE_CONTINUE;
    }
    TRY(world_broadcast(g->world, session->sampling_rank, ARENA_CHOICE, 1 + g->n_sampled, I32));
    return g->choice[0] == CHOICE_FAILED ? world_agree(g->world, err) : OK;
}

static bool is_stop(const GenerateSettings *s, int32_t token)
{
    for (int i = 0; i < s->n_stop_tokens; i++)
        if (s->stop_token[i] == token) return true;
    return false;
}

static void take_token(Generator *g, ActiveSequence *p, int32_t token)
{
    const GenerateSettings *s = g->s;
    const int64_t made = p->n + 1 - s->prompt[p->prompt].n;
    if (is_stop(s, token)) {
        end_sequence(g, p, END_TOKEN);
        return;
    }
    p->token[p->n++] = token;
    const bool enough = s->listener.token(s->listener.context, p->prompt, token);
    if (enough)
        end_sequence(g, p, END_STOP);
    else if (made >= s->max_tokens)
        end_sequence(g, p, END_LENGTH);
    else if (p->n > g->shape->context) /* no position is left for the new token */
        end_sequence(g, p, END_CONTEXT);
}

static Err run_call(Generator *g)
{
    Tensor logits;
    const double before = now_s();
    plan_call(g);
    TRY(session_call(g->s->session, g->row, g->n_rows, &logits));
    TRY(choose(g, &logits));
    const double took = now_s() - before;
    if (g->prefill) {
        g->result.prefill_s += took;
        g->result.prefill_tokens += g->n_rows;
    } else {
        g->result.decode_s += took;
        g->result.decode_tokens += g->n_sampled;
    }
    g->result.stopped = g->choice[0] == CHOICE_STOP;
    for (int64_t i = 0; i < g->n_sampled && !g->result.stopped; i++)
        take_token(g, &g->sequence[g->sampled[i]], g->choice[1 + i]);
    return OK;
}

static bool is_busy(const Generator *g)
{
    for (int64_t i = 0; i < g->shape->sequences; i++)
        if (g->sequence[i].prompt >= 0) return true;
    return false;
}

Err generate_run(const GenerateSettings *s, GenerateResult *out)
{
    Generator g = {
        .s = s, .shape = &s->session->settings.jobs->shape, .world = s->session->settings.world};
    TRY(world_agree(g.world, open_generator(&g)));
    for (admit(&g); is_busy(&g) && !g.result.stopped; admit(&g)) TRY(run_call(&g));
    for (int64_t i = 0; i < g.shape->sequences; i++)
        if (g.sequence[i].prompt >= 0) end_sequence(&g, &g.sequence[i], END_INTERRUPT);
    *out = g.result;
    return OK;
}
