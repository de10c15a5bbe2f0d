/* trial_infer.c -- what a trial does with its trained weights: the loss of further sequences, and
 * the continuation of prompts, greedily, in a session with a KV cache. */
#include "verify/trial_parts.h"

#include "base/math.h"
#include "base/philox.h"
#include "infer/generate.h"

/* ---- validation ---- */

static Err compile_validation(WorldRank *w, const Job *job, Job **out)
{
    JobSettings set = job->settings;
    set.kind = JOB_LOSS;
    TRY(ARENA_NEW(w->arena, 1, out));
    return job_compile(&set, w->arena, *out);
}

static Err open_validation(WorldRank *w, const Job *job, const TrialSettings *s,
                           const Rank *trained, const RankObserver *observer, Rank *rank)
{
    const RankSettings open = {.program = &job->linked,
                               .device = s->device,
                               .ordinal = w->rank,
                               .deterministic = true,
                               .comm = w->comm,
                               .optim = job->settings.optim,
                               .poison = s->poison,
                               .observer = *observer,
                               .state_of = trained};
    return rank_open(rank, &open);
}

Err trial_validate(WorldRank *w, const Job *job, const TrialSettings *s, const Rank *trained,
                   ExpertChoices *choices, double *loss)
{
    Rank rank = {0};
    Job *valid;
    StepResult result;
    TRY(world_agree(w, compile_validation(w, job, &valid)));
    ChoiceRank routes = {choices, valid, ROUTED_VALID, w->arena};
    const RankObserver observer = choices_observer(&routes);
    Err err = world_agree(w, open_validation(w, valid, s, trained, &observer, &rank));
    if (err == OK) {
        trial_fill(&rank, valid, s, s->steps + 1);
        err = rank_step(&rank, &(StepSettings){.step = 1}, &result);
    }
    if (err == OK) *loss = result.loss;
    if (err == OK) err = comm_quiet(w->comm);
    rank_close(&rank);
    return err;
}

/* ---- generation ---- */

enum { PROMPTS = 3, SEQUENCES = 2, CALL_ROWS = 5 };

typedef struct {
    const TrialSettings *s;
    Trial *out;
    Prompt prompt[PROMPTS];
    int64_t n[PROMPTS]; /* tokens so far */
} TrialText;

/* Prompts of one token, of half the context, and of all of it but one. */
static Err make_prompts(const TrialSettings *s, Arena *arena, Prompt prompt[PROMPTS])
{
    const int64_t context = s->job.batch.seq_len;
    const Random random = random_named(s->seed, "prompts");
    for (int p = 0; p < PROMPTS; p++) {
        const int64_t n = max_i64(1, p * (context - 1) / (PROMPTS - 1));
        int32_t *token;
        TRY(ARENA_NEW(arena, n, &token));
        for (int64_t i = 0; i < n; i++)
            token[i] = (int32_t)(random_bits(&random, (uint64_t)(p * context + i)) %
                                 (uint64_t)s->job.config->vocab);
        prompt[p] = (Prompt){token, n};
    }
    return OK;
}

static bool on_token(void *context, int64_t prompt, int32_t token)
{
    TrialText *t = context;
    t->out->text[prompt * t->s->job.batch.seq_len + t->n[prompt]++] = token;
    return false;
}

static bool off_token(void *context, int64_t prompt, int32_t token)
{
    (void)context, (void)prompt, (void)token;
    return false;
}

static void on_end(void *context, int64_t prompt, GenerateEnd why)
{
    (void)context, (void)prompt, (void)why;
}

/* Writes the trained weights into the rank's home. */
static Err load_weights(Rank *r, const Trial *out)
{
    for (int pack = 0; pack < r->settings.program->model->n_packs; pack++)
        for (int i = 0; i < rank_pieces(r, pack); i++) {
            const RankPiece p = rank_piece(r, pack, i);
            double *weight = rank_piece_data(r, &p, PART_MASTER).data;
            for (int64_t k = 0; k < p.hi - p.lo; k++)
                weight[k] = out->weight[out->at[p.param] + rank_piece_global(&p, k)];
        }
    return rank_publish(r);
}

static Err continue_prompts(WorldRank *w, TrialText *t, Session *session)
{
    const int64_t context = t->s->job.batch.seq_len;
    GenerateResult result;
    const GenerateSettings set = {.session = session,
                                  .prompt = t->prompt,
                                  .n_prompts = PROMPTS,
                                  .sample = {.temperature = 0, .top_p = 1, .repetition = 1},
                                  .max_tokens = context,
                                  .listener = {w->rank == 0 ? on_token : off_token, on_end, t},
                                  .arena = w->arena};
    return generate_run(&set, &result);
}

/* Ranks along dp would repeat the same calls, unless they have other experts. */
static MeshSizes generating_mesh(MeshSizes m)
{
    if (m.ep <= 1 && m.etp <= 1) m.dp_replicate = m.dp_shard = 1;
    return m;
}

static Err generate_rank(WorldRank *w, void *work)
{
    TrialText *t = work;
    JobSettings base = t->s->job;
    SessionJobs *jobs;
    Session *session;
    const SessionShape shape = {.rows = CALL_ROWS,
                                .logit_rows = CALL_ROWS,
                                .sequences = SEQUENCES,
                                .context = base.batch.seq_len,
                                .cached = true};
    base.parallel.rank = w->rank;
    base.parallel.mesh = generating_mesh(base.parallel.mesh);
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &jobs)));
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &session)));
    TRY(world_agree(w, session_compile(&base, &shape, w->arena, jobs)));
    const SessionSettings set = {jobs, &device_ref, w, NULL};
    Err err = world_agree(w, session_open(session, &set));
    if (err == OK) err = world_agree(w, load_weights(&session->rank[0], t->out));
    if (err == OK) err = continue_prompts(w, t, session);
    world_leave(w, err);
    session_close(session);
    return err;
}

Err trial_generate(const TrialSettings *s, Arena *arena, Trial *out)
{
    MeshSizes sizes = s->job.parallel.mesh;
    TrialText text = {.s = s, .out = out};
    Mesh mesh;
    MUST(s->job.dtype == F64, "%s", dtype_name(s->job.dtype));
    sizes = generating_mesh(sizes);
    TRY(mesh_sized(&sizes, &mesh));
    out->n_text = PROMPTS * s->job.batch.seq_len;
    TRY(ARENA_NEW(arena, out->n_text, &out->text));
    for (int64_t i = 0; i < out->n_text; i++) out->text[i] = -1;
    TRY(make_prompts(s, arena, text.prompt));
    const WorldSettings world = {.ranks = mesh.world,
                                 .in_flight = TRIAL_IN_FLIGHT,
                                 .records = TRIAL_RECORDS,
                                 .timeout_s = TRIAL_TIMEOUT_S,
                                 .body = generate_rank,
                                 .work = &text};
    return world_run(&world);
}
