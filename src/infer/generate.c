/* generate.c -- the loop, as each of its ranks runs it. */
#define _DEFAULT_SOURCE
#include "infer/generate.h"

#include <string.h>
#include <time.h>

enum { ARENA_CHOICE = MAX_COMM_ARENAS - 1 };

/* What the chooser tells: how it goes on, then a token for each row that was asked for. */
enum { GO_ON, GO_STOP, GO_FAILED };

/* A seat of the session, and who has it. */
typedef struct {
    int64_t prompt; /* -1: nobody */
    int64_t n;      /* tokens of the sequence */
    int64_t filled; /* of these, in the cache */
    int32_t *token; /* [context + 1] */
} Seat;

typedef struct {
    const GenerateSettings *s;
    const SessionShape *shape;
    WorldRank *world;
    Sampler sampler;
    Seat *seat;   /* [sequences] */
    int64_t next; /* prompt that waits first */
    SessionRow *row;
    int64_t n_rows;
    int64_t *asked; /* [sequences]: the seats whose rows are asked for */
    int64_t n_asked;
    bool prefill;    /* the call at hand is one */
    int32_t *choice; /* [1 + sequences]: registered as ARENA_CHOICE */
    GenerateResult result;
} Loop;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *generate_end_name(GenerateEnd why)
{
    static const char *const name[N_ENDS] = {"stop", "eos", "length", "context", "interrupt"};
    return name[why];
}

static Err open_loop(Loop *l)
{
    const GenerateSettings *s = l->s;
    const Job *job = &s->session->settings.jobs->call[0];
    const int64_t sequences = l->shape->sequences;
    const size_t bytes = (size_t)(1 + sequences) * sizeof *l->choice;
    TRY(sampler_open(&l->sampler, &s->sample, job->settings.config->vocab, s->arena));
    TRY(ARENA_NEW(s->arena, sequences, &l->seat));
    TRY(ARENA_NEW(s->arena, l->shape->rows, &l->row));
    TRY(ARENA_NEW(s->arena, sequences, &l->asked));
    TRY(ARENA_NEW(s->arena, 1 + sequences, &l->choice));
    for (int64_t i = 0; i < sequences; i++) {
        TRY(ARENA_NEW(s->arena, l->shape->context + 1, &l->seat[i].token));
        l->seat[i].prompt = -1;
    }
    return comm_register(l->world->comm, ARENA_CHOICE, l->choice, bytes);
}

static void end_seat(Loop *l, Seat *p, GenerateEnd why)
{
    if (l->s->listener.end) l->s->listener.end(l->s->listener.context, p->prompt, why);
    p->prompt = -1;
}

/* Who waits takes seats that are free. */
static void admit(Loop *l)
{
    for (int64_t i = 0; i < l->shape->sequences && l->next < l->s->n_prompts; i++) {
        Seat *p = &l->seat[i];
        if (p->prompt >= 0) continue;
        const Prompt *prompt = &l->s->prompt[l->next];
        MUST(prompt->n >= 1 && prompt->n <= l->shape->context, "%lld tokens", (long long)prompt->n);
        memcpy(p->token, prompt->token, (size_t)prompt->n * sizeof *p->token);
        p->prompt = l->next++;
        p->n = prompt->n;
        p->filled = 0;
    }
}

/* Rows of a seat that the cache has not, while there is room; the last of the sequence is asked
 * for. */
static void add_rows(Loop *l, int64_t at)
{
    Seat *p = &l->seat[at];
    if (!l->shape->cached) p->filled = 0;
    for (; p->filled < p->n && l->n_rows < l->shape->rows; p->filled++) {
        const bool last = p->filled == p->n - 1;
        l->row[l->n_rows++] = (SessionRow){at, p->filled, p->token[p->filled], last};
        if (last) l->asked[l->n_asked++] = at;
    }
}

/* Has it more to put into the cache than its newest token? */
static bool waits(const Seat *p)
{
    return p->prompt >= 0 && (p->filled == 0 || p->n - p->filled > 1);
}

/* Prompts first: all of them are in the cache before anybody gets another token. */
static void plan_call(Loop *l)
{
    l->n_rows = l->n_asked = 0;
    l->prefill = false;
    for (int64_t i = 0; i < l->shape->sequences; i++) l->prefill = l->prefill || waits(&l->seat[i]);
    for (int64_t i = 0; i < l->shape->sequences; i++)
        if (l->seat[i].prompt >= 0 && waits(&l->seat[i]) == l->prefill) add_rows(l, i);
}

static Err draw_all(Loop *l, const Tensor *logits)
{
    for (int64_t i = 0; i < l->n_asked; i++) {
        const Seat *p = &l->seat[l->asked[i]];
        Tensor row = {.dtype = logits->dtype, .ndim = 1, .n = {logits->n[1]}, .stride = {1}};
        row.stride[0] = logits->stride[1];
        row.data = (char *)logits->data + (size_t)(i * logits->stride[0]) * dtype_bytes(row.dtype);
        const Draw draw = {p->token, p->n, p->prompt};
        TRY(sampler_draw(&l->sampler, &row, &draw, &l->choice[1 + i]));
    }
    return OK;
}

/* The tokens on all ranks; or all end, for the same reason. */
static Err choose(Loop *l, const Tensor *logits)
{
    const Session *session = l->s->session;
    const bool mine = l->world->rank == session->chooser;
    Err err = OK;
    if (mine) {
        err = draw_all(l, logits);
        l->choice[0] = err != OK ? GO_FAILED : l->s->stop && *l->s->stop ? GO_STOP : GO_ON;
    }
    const int64_t n = 1 + l->n_asked;
    const Transfer t = {.kind = COMM_BROADCAST,
                        .group = l->world->all,
                        .from = {session->chooser, ARENA_CHOICE, 0, n, I32},
                        .to = {l->world->rank, ARENA_CHOICE, 0, n, I32},
                        .instr = -1,
                        .scalar = true};
    TRY(comm_do(l->world->comm, &t));
    return l->choice[0] == GO_FAILED ? world_agree(l->world, err) : OK;
}

static bool is_stop(const GenerateSettings *s, int32_t token)
{
    for (int i = 0; i < s->n_stop_tokens; i++)
        if (s->stop_token[i] == token) return true;
    return false;
}

static void take_token(Loop *l, Seat *p, int32_t token)
{
    const GenerateSettings *s = l->s;
    const int64_t made = p->n + 1 - s->prompt[p->prompt].n;
    if (is_stop(s, token)) {
        end_seat(l, p, END_TOKEN);
        return;
    }
    p->token[p->n++] = token;
    const bool enough = s->listener.token(s->listener.context, p->prompt, token);
    if (enough)
        end_seat(l, p, END_STOP);
    else if (made >= s->max_tokens)
        end_seat(l, p, END_LENGTH);
    else if (p->n > l->shape->context) /* it has no position left to be seen at */
        end_seat(l, p, END_CONTEXT);
}

static Err one_call(Loop *l)
{
    Tensor logits;
    const double before = now_s();
    plan_call(l);
    TRY(session_call(l->s->session, l->row, l->n_rows, &logits));
    TRY(choose(l, &logits));
    const double took = now_s() - before;
    if (l->prefill) {
        l->result.prefill_s += took;
        l->result.prefill_tokens += l->n_rows;
    } else {
        l->result.decode_s += took;
        l->result.decode_tokens += l->n_asked;
    }
    l->result.stopped = l->choice[0] == GO_STOP;
    for (int64_t i = 0; i < l->n_asked && !l->result.stopped; i++)
        take_token(l, &l->seat[l->asked[i]], l->choice[1 + i]);
    return OK;
}

static bool is_busy(const Loop *l)
{
    for (int64_t i = 0; i < l->shape->sequences; i++)
        if (l->seat[i].prompt >= 0) return true;
    return false;
}

Err generate_run(const GenerateSettings *s, GenerateResult *out)
{
    Loop l = {
        .s = s, .shape = &s->session->settings.jobs->shape, .world = s->session->settings.world};
    TRY(world_agree(l.world, open_loop(&l)));
    for (admit(&l); is_busy(&l) && !l.result.stopped; admit(&l)) TRY(one_call(&l));
    for (int64_t i = 0; i < l.shape->sequences; i++)
        if (l.seat[i].prompt >= 0) end_seat(&l, &l.seat[i], END_INTERRUPT);
    *out = l.result;
    return OK;
}
