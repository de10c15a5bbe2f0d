/* tiny.c -- models with a body from the test, their action lists and random contents. */
#include "support/tiny.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/philox.h"
#include "schedule/check/check.h"

double real_get(const Tensor *t, int64_t i)
{
    return t->dtype == F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

void real_set(const Tensor *t, int64_t i, double x)
{
    if (t->dtype == F64)
        ((double *)t->data)[i] = x;
    else
        ((float *)t->data)[i] = (float)x;
}

Value tiny_param(Graph *g, const char *name, int64_t n0, int64_t n1)
{
    return graph_param(g, (ParamInfo){.name = name,
                                      .ndim = n1 ? 2 : 1,
                                      .n = {n0, n1},
                                      .init = n1 ? INIT_NORMAL : INIT_ONES,
                                      .decay = n1 > 0});
}

void rank_fill_weights(Rank *r, uint64_t seed)
{
    const LinkedProgram *lp = r->settings.program;
    memset(r->base[ARENA_STATE], 0, lp->bytes[ARENA_STATE]);
    for (int p = 0; p < lp->model->n_params; p++) {
        const Param *q = &lp->model->param[p];
        const Random random = random_named(seed, q->name);
        const bool sums = lp->pack[q->pack].reduced_grads != NO_BASE; /* none without backward */
        const Tensor w = rank_param(r, p, PART_WEIGHT);
        const Tensor dw = sums ? rank_param(r, p, PART_GRAD) : w;
        for (int64_t i = 0; i < q->count; i++) {
            const double about = q->info.init == INIT_ONES ? 1.0 : 0.0;
            real_set(&dw, i, (double)NAN); /* the first write of a sum does not read it */
            real_set(&w, i, about + 0.4 * random_normal(&random, (uint64_t)i));
        }
    }
}

void rank_poison(Rank *r, ArenaId arena)
{
    memset(r->base[arena], 0xFF, r->settings.program->bytes[arena]);
}

/* Returns the first row of the document that contains row i. A random walk cuts the rows. */
static int64_t document_start(const TestBatch *b, int64_t i)
{
    const int64_t n = b->documents ? b->documents : 1;
    const Random random = random_named(b->seed, "cuts");
    int64_t start = 0;
    for (int64_t d = 1; d < n; d++) {
        const int64_t even = d * b->rows / n;
        const int64_t cut = even + (int64_t)(random_bits(&random, (uint64_t)d) % 2);
        if (cut <= i && cut > start) start = cut;
    }
    return start;
}

static void fill_ranges(const TestBatch *b, int64_t i, int32_t *ranges)
{
    int64_t lo = document_start(b, i);
    if (b->window && i + 1 - b->window > lo) lo = i + 1 - b->window;
    const bool hole = b->two && i - lo >= 3;
    const int64_t range[4] = {lo, hole ? lo + 1 : i + 1, hole ? i - 1 : 0, hole ? i + 1 : 0};
    for (int k = 0; k < 4; k++) ranges[k] = (int32_t)range[k];
}

/* Inputs of diffusion models, if the model reads them. Tokens of a clip do not follow each
 * other. */
static void fill_clips(Rank *r, int micro, const TestBatch *b)
{
    const Random random = random_named(b->seed, "clips");
    const Tensor clips = rank_input(r, micro, INPUT_CLIPS);
    const Tensor times = rank_input(r, micro, INPUT_TIMES);
    const Tensor target = rank_input(r, micro, INPUT_VELOCITY);
    for (int64_t i = 0; i < clips.n[0]; i++)
        ((int32_t *)clips.data)[i] =
            i < b->rows ? (int32_t)(random_bits(&random, (uint64_t)i) % TINY_CLIPS) : INT32_MAX;
    for (int64_t i = 0; i < times.n[0]; i++)
        real_set(&times, i, random_uniform(&random, (uint64_t)i));
    for (int64_t i = 0; i < target.n[0] * target.n[1]; i++)
        real_set(&target, i,
                 i / target.n[1] < b->rows ? random_normal(&random, (uint64_t)i) : (double)NAN);
}

void rank_fill_batch(Rank *r, int micro, const TestBatch *b)
{
    const Random random = random_named(b->seed, "batch");
    const int64_t rows = r->settings.program->model->rows;
    for (int64_t i = 0; i < rows; i++) {
        const uint64_t at = (uint64_t)i, ids = (uint64_t)b->ids;
        const int64_t row = i - document_start(b, i);
        const InputRow dead = {
            INT32_MAX, INT32_MAX, INT32_MAX, {0, INT32_MAX, 0, INT32_MAX}, (double)NAN};
        InputRow live = {.token = (int32_t)random_permute(&random, ids, at % ids),
                         .target = (int32_t)(random_bits(&random, at) % (uint64_t)b->vocab),
                         .position = (int32_t)(row % b->positions),
                         .weight = i % 5 == 3 ? 0.0 : 0.5 + random_uniform(&random, at)};
        fill_ranges(b, i, live.range);
        rank_put_row(r, micro, i, i < b->rows ? &live : &dead);
    }
    fill_clips(r, micro, b);
    rank_set_rows(r, micro, b->rows);
}

TestBatch tiny_batch(const TinySpec *spec, int micro)
{
    return (TestBatch){.seed = (uint64_t)(100 + micro),
                       .rows = spec->rows - (spec->fixed ? 0 : micro),
                       .documents = 2,
                       .two = true,
                       .ids = TINY_IDS,
                       .vocab = TINY_VOCAB,
                       .positions = TINY_POSITIONS};
}

static Err build_model(Tiny *t)
{
    const TinySpec *s = &t->spec;
    const Dim rows = s->fixed ? dim_of(s->rows) : dim_rows(s->rows, SLOT_ROWS);
    static const char *const kind[] = {"embed", "body", "head"};
    Model *m = &t->model;
    const int bodies = s->bodies ? s->bodies : 1;
    TRY(model_open(m, "tiny", bodies + 2, 32 * (bodies + 2), &t->arena));
    m->dtype = s->dtype;
    m->rows = s->rows;
    m->width = s->width;
    m->n_kinds = 3;
    for (int k = 0; k < 3; k++) graph_init(&m->kind[k], kind[k], s->dtype, &t->arena);
    Graph *g = &m->kind[0];
    stream_out(
        g, embedding(g, input(g, INPUT_TOKENS, rows), tiny_param(g, "table", TINY_IDS, s->width)));
    g = &m->kind[1];
    stream_out(g, s->body(g, rows, stream_in(g, rows, s->width)));
    g = &m->kind[2];
    const Value x = stream_in(g, rows, s->width), w = tiny_param(g, "out", TINY_VOCAB, s->width);
    if (s->squares)
        square_loss(g, linear(g, x, w, NO_VALUE), input_sized(g, INPUT_VELOCITY, rows, TINY_VOCAB),
                    input(g, INPUT_WEIGHTS, rows));
    else
        token_loss(g, x, w, input(g, INPUT_TARGETS, rows), input(g, INPUT_WEIGHTS, rows));
    TRY(model_add_unit(m, 0, "embed", "embed."));
    for (int i = 0; i < bodies; i++) {
        char name[32], prefix[32];
        snprintf(name, sizeof name, "body.%d", i);
        snprintf(prefix, sizeof prefix, "body.%d.", i);
        TRY(model_add_unit(m, 1, name, prefix));
    }
    return model_add_unit(m, 2, "head", "head.");
}

static void put_runs(Schedule *s, Phase phase, int micro)
{
    const int n = schedule_units(s);
    for (int i = 0; i < n; i++)
        s->list[0][s->n[0]++] = action_run(phase, phase == PHASE_F ? i : n - 1 - i, micro, 0);
}

static Err make_list(Tiny *t)
{
    const TinySpec *spec = &t->spec;
    const bool back = spec->compile.backward;
    const int units = t->model.n_units, cap = (3 * spec->micros + 1) * units + 2;
    const int16_t stage_of[] = {0}, first_unit[] = {0, (int16_t)units};
    int16_t *first_pack;
    TRY(ARENA_NEW(&t->arena, units + 1, &first_pack));
    for (int u = 0; u < units; u++)
        first_pack[u + 1] = (int16_t)(t->model.unit[u].first_pack + t->model.unit[u].n_packs);
    const Schedule shape = {.level = OVER_UNITS,
                            .stages = 1,
                            .chunks = 1,
                            .micros = spec->micros,
                            .slices = 1,
                            .stage_of = stage_of,
                            .first_unit = first_unit,
                            .first_pack = first_pack};
    Schedule *s = &t->schedule;
    TRY(schedule_init(&shape, &cap, &t->arena, s));
    if (spec->bind) s->list[0][s->n[0]++] = action_of(A_BIND, 0);
    for (int m = 0; m < spec->micros; m++) {
        put_runs(s, PHASE_F, m);
        if (back && spec->one_by_one) put_runs(s, spec->split ? PHASE_I : PHASE_B, m);
    }
    for (int m = 0; back && !spec->one_by_one && m < spec->micros; m++)
        put_runs(s, spec->split ? PHASE_I : PHASE_B, m);
    for (int m = 0; back && spec->split && m < spec->micros; m++) put_runs(s, PHASE_W, m);
    if (spec->step) s->list[0][s->n[0]++] = action_of(A_NORM, 0);
    for (int p = 0; spec->step && p < t->model.n_packs; p++)
        s->list[0][s->n[0]++] = action_of(A_UPDATE, p);
    return back ? schedule_check(s, &t->arena) : OK;
}

static Err compile_kinds(Tiny *t)
{
    CompileOptions *o = &t->spec.compile;
    t->mesh = mesh_single();
    o->mesh = &t->mesh;
    o->strategy = &strategy_tp;
    for (int k = 0; k < t->model.n_kinds; k++)
        TRY(compile_unit(&t->model.kind[k], o, NULL, NULL, &t->arena, &t->program[k]));
    return OK;
}

Err tiny_open(Tiny *t, const TinySpec *spec)
{
    *t = (Tiny){.spec = *spec};
    TRY(arena_open(&t->arena, "tiny", ARENA_PLENTY));
    TRY(build_model(t));
    TRY(compile_kinds(t));
    TRY(make_list(t));
    if (!t->spec.optim.block) t->spec.optim.block = 16;
    const LinkInput in = {.model = &t->model,
                          .program = t->program,
                          .n_moments = spec->optim.kind == OPTIM_ADAMW ? 2 : 0,
                          .block = t->spec.optim.block};
    TRY(schedule_link(&t->schedule, 0, &in, &t->arena, &t->linked));
    const RankSettings set = {.program = &t->linked,
                              .device = &device_ref,
                              .optim = t->spec.optim,
                              .poison = true,
                              .late = true};
    TRY(rank_open(&t->rank, &set));
    for (int i = 0; i < N_ARENAS; i++) rank_poison(&t->rank, (ArenaId)i);
    rank_fill_weights(&t->rank, 7);
    for (int m = 0; m < spec->micros; m++) {
        const TestBatch b = tiny_batch(spec, m);
        rank_fill_batch(&t->rank, m, &b);
    }
    return OK;
}

void tiny_close(Tiny *t)
{
    rank_close(&t->rank);
    arena_close(&t->arena);
}
