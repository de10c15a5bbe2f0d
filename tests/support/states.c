/* states.c -- jobs whose state is looked at. */
#include "support/states.h"

#include "base/philox.h"
#include "device/ref/ref.h"
#include "job/batch.h"
#include "verify/layouts.h"

const char *const state_layouts[] = {
    "",
    "dp=2",
    "dp=2 zero=1",
    "dp=2 zero=2",
    "dp=2 zero=3",
    "dp=5 zero=3",
    "tp=2",
    "tp=3",
    "tp=2 sequence",
    "dp_replicate=2 dp_shard=2 zero=3",
    "dp_replicate=2 dp_shard=2 zero=1",
    "dp=2 tp=3 zero=1",
    "pp=2",
    "pp=2 schedule=interleaved chunks=2",
    "pp=2 schedule=zbv",
    "pp=3 dp=2 zero=2",
    "pp=2 tp=3 zero=0",
    NULL,
};

static Err model_of(const StateSpec *spec, Arena *a, const ModelConfig **out)
{
    ModelConfig *made;
    *out = spec->config;
    if (*out) return OK;
    TRY(ARENA_NEW(a, 1, &made));
    *made = *test_model("llama");
    made->tied = true;
    made->n_layers = 4;
    if (spec->vocab) made->vocab = spec->vocab;
    *out = made;
    return OK;
}

void state_world_open_as(StateWorld *w, const StateSpec *spec)
{
    *w = (StateWorld){.words = spec->words, .set = test_job_settings("llama", JOB_STEP)};
    DO(arena_open(&w->arena, "state world", ARENA_PLENTY));
    DO(model_of(spec, &w->arena, &w->set.config));
    w->set.dtype = spec->dtype;
    w->set.optim.kind = spec->kind;
    DO(layout_parse(w->words, strlen(w->words), &w->set.parallel));
    w->ranks = layout_ranks(&w->set.parallel);
    const MeshSizes *m = &w->set.parallel.mesh;
    const int64_t dp = (m->dp_replicate ? m->dp_replicate : 1) * (m->dp_shard ? m->dp_shard : 1);
    w->set.micros = (int)batch_micros(STATE_SEQUENCES, w->set.batch.sequences, dp, 1);
    DO(ARENA_NEW(&w->arena, w->ranks, &w->job));
    for (int i = 0; i < w->ranks; i++) {
        JobSettings set = w->set;
        set.parallel.rank = i;
        Err err = job_compile(&set, &w->arena, &w->job[i]);
        if (err == OK && spec->change) err = spec->change(&w->job[i], &w->arena);
        if (err != OK) fail_msg("%s: %s", w->words, err_text());
    }
}

void state_world_open(StateWorld *w, const char *words)
{
    state_world_open_as(w, &(StateSpec){.words = words});
}

void state_world_close(StateWorld *w) { arena_close(&w->arena); }

typedef struct {
    const StateWorld *w;
    Err (*body)(StateRank *r, void *work);
    void *work;
} Running;

static Err run_one(WorldRank *world, void *running)
{
    const Running *x = running;
    StateRank r = {.world = world, .job = &x->w->job[world->rank]};
    const RankSettings set = {.program = &r.job->linked,
                              .device = &device_ref,
                              .comm = world->comm,
                              .optim = x->w->set.optim,
                              .poison = true};
    Err err = rank_open(&r.rank, &set);
    for (int i = 0; err == OK && i < N_ARENAS; i++) rank_poison(&r.rank, (ArenaId)i);
    err = world_agree(world, err);
    if (err == OK) err = x->body(&r, x->work);
    world_leave(world, err);
    rank_close(&r.rank);
    return err;
}

Err state_world_run(const StateWorld *w, Err (*body)(StateRank *r, void *work), void *work)
{
    Running x = {w, body, work};
    const WorldSettings set = {.ranks = w->ranks,
                               .in_flight = 64,
                               .records = 64,
                               .timeout_s = 60,
                               .body = run_one,
                               .work = &x};
    return world_run(&set);
}

Err state_step(StateRank *r, int64_t step, double *loss)
{
    const BatchSplit split = batch_split(r->job);
    StepResult result;
    for (int m = 0; m < split.micros; m++) {
        const BatchPart part = batch_part(&split, STATE_SEQUENCES, m);
        TestBatch b = test_job_batch(&r->job->settings, (int)(part.first + 16 * step));
        if (part.n == 0) b.rows = 0;
        rank_fill_batch(&r->rank, m, &b);
    }
    TRY(rank_step(&r->rank, &(StepSettings){.step = step, .lr = 0.01}, &result));
    *loss = result.loss;
    return OK;
}

void state_whole_open(StateWhole *h, const StateWorld *w)
{
    *h = (StateWhole){0};
    DO(arena_open(&h->arena, "state whole", ARENA_PLENTY));
    DO(state_tensors(&w->job[0].linked, &h->arena, &h->tensors));
    DO(ARENA_NEW(&h->arena, h->tensors.n, &h->data));
    DO(ARENA_NEW(&h->arena, h->tensors.n, &h->known));
    for (int i = 0; i < h->tensors.n; i++) {
        const StateTensor *t = &h->tensors.tensor[i];
        const int64_t count = shape_count(&t->shape);
        DO(ARENA_NEW(&h->arena, count * (int64_t)dtype_bytes(t->dtype), &h->data[i]));
        DO(ARENA_NEW(&h->arena, count, &h->known[i]));
    }
    pthread_mutex_init(&h->lock, NULL);
}

void state_whole_close(StateWhole *h)
{
    pthread_mutex_destroy(&h->lock);
    arena_close(&h->arena);
}

static const ParamPart part_of[] = {PART_MASTER, PART_MOMENT1, PART_MOMENT2};

static Err collect_piece(StateRank *r, StateWhole *h, const RankPiece *piece, int tensor)
{
    const StateTensor *t = &h->tensors.tensor[tensor];
    const Tensor data = rank_piece_data(&r->rank, piece, part_of[t->role]);
    const size_t element = dtype_bytes(t->dtype);
    for (int64_t i = 0; i < piece->hi - piece->lo; i++) {
        const int64_t at = rank_piece_global(piece, i);
        const char *mine = (const char *)data.data + i * (int64_t)element;
        char *there = h->data[tensor] + at * (int64_t)element;
        if (!h->known[tensor][at]) memcpy(there, mine, element);
        h->known[tensor][at] = true;
        if (memcmp(there, mine, element) != 0)
            return err_fail(ERR_CHECK, "rank %d: element %lld of %s of %s differs from the whole",
                            r->world->rank, (long long)at, state_role_name(t->role), t->name);
    }
    return OK;
}

Err state_collect(StateRank *r, StateWhole *h)
{
    const LinkedProgram *lp = &r->job->linked;
    Err err = OK;
    pthread_mutex_lock(&h->lock);
    for (int u = 0; u < lp->model->n_packs; u++)
        for (int i = 0; i < rank_pieces(&r->rank, u); i++) {
            const RankPiece piece = rank_piece(&r->rank, u, i);
            for (int k = 0; k < h->tensors.n && err == OK; k++)
                if (strcmp(h->tensors.tensor[k].name, lp->model->param[piece.param].name) == 0)
                    err = collect_piece(r, h, &piece, k);
        }
    pthread_mutex_unlock(&h->lock);
    return err;
}

void state_fill(StateRank *r, uint64_t seed)
{
    const LinkedProgram *lp = &r->job->linked;
    for (int u = 0; u < lp->model->n_packs; u++)
        for (int i = 0; i < rank_pieces(&r->rank, u); i++) {
            const RankPiece piece = rank_piece(&r->rank, u, i);
            for (int role = 0; role <= lp->n_moments; role++) {
                const Tensor data = rank_piece_data(&r->rank, &piece, part_of[role]);
                const Random x =
                    random_named(seed + (uint64_t)role, lp->model->param[piece.param].name);
                for (int64_t k = 0; k < piece.hi - piece.lo; k++)
                    real_set(&data, k, random_normal(&x, (uint64_t)rank_piece_global(&piece, k)));
            }
        }
}
