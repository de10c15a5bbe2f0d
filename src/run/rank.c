/* rank.c -- opening a rank, and walking its list. */
#include "run/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "base/text.h"
#include "run/execute.h"

static const char *const arena_name[N_ARENAS] = {"state", "step", "work", "host"};

/* Two ranks on one comm (training, validation) have arenas of the same names: of the one that steps. */
static Err register_arenas(Rank *r)
{
    for (int i = 0; i < N_ARENAS && r->settings.comm; i++) {
        const size_t bytes = r->settings.program->bytes[i];
        TRY(comm_register(r->settings.comm, i, r->base[i], bytes ? bytes : ARENA_ALIGN));
    }
    return OK;
}

Err rank_open(Rank *r, const RankSettings *settings)
{
    const LinkedProgram *lp = settings->program;
    *r = (Rank){.settings = *settings};
    TRY(device_check(settings->device));
    TRY(execute_check_calls(lp));
    for (int i = 0; i < N_ARENAS; i++) {
        void *base;
        const size_t bytes = lp->bytes[i] ? lp->bytes[i] : ARENA_ALIGN;
        if (i == ARENA_STATE && settings->state_of) {
            MUST(settings->state_of->settings.program->bytes[i] == lp->bytes[i], "states differ");
            r->base[i] = settings->state_of->base[i];
            continue;
        }
        TRY(arena_open(&r->arena[i], arena_name[i], bytes));
        TRY(arena_push(&r->arena[i], bytes, &base));
        r->base[i] = base;
    }
    r->live_rows = calloc((size_t)lp->micros, sizeof *r->live_rows);
    if (!r->live_rows) return err_fail(ERR_NOMEM, "no memory for %d micro-batches", lp->micros);
    for (int m = 0; m < lp->micros; m++) r->live_rows[m] = lp->model->rows;
    r->slot[SLOT_ONE] = 1.0;
    return register_arenas(r);
}

void rank_close(Rank *r)
{
    for (int i = 0; i < N_ARENAS; i++)
        if (r->arena[i].base) arena_close(&r->arena[i]);
    free(r->live_rows);
    *r = (Rank){0};
}

Tensor rank_param(const Rank *r, int param, ParamPart part)
{
    const LinkedProgram *lp = r->settings.program;
    const Param *p = &lp->model->param[param];
    const UnitPlace *at = &lp->unit[p->holder[0]];
    const DType dtype = part == PART_WEIGHT ? lp->model->dtype : dtype_wide(lp->model->dtype);
    const size_t place[] = {at->weights, at->master, at->grads, at->moments[0], at->moments[1]};
    Tensor t = {.dtype = dtype, .ndim = p->info.ndim};
    t.data = r->base[part == PART_GRAD ? ARENA_STEP : ARENA_STATE] + place[part] +
             (size_t)p->pack_at * dtype_bytes(dtype);
    int64_t step = 1;
    for (int i = p->info.ndim - 1; i >= 0; i--) {
        t.n[i] = p->info.n[i];
        t.stride[i] = step;
        step *= t.n[i];
    }
    return t;
}

/* Initial values of one parameter, a tile at a time. */
typedef struct {
    Tensor w;
    int64_t count;
    Init init;
    double std;
    Random random;
} Start;

enum { START_TILE = 1 << 14 };

static void start_tile(void *work, int64_t tile)
{
    const Start *s = work;
    const int64_t end = (tile + 1) * START_TILE < s->count ? (tile + 1) * START_TILE : s->count;
    for (int64_t i = tile * START_TILE; i < end; i++) {
        double x = s->init == INIT_ONES ? 1.0 : 0.0;
        if (s->init == INIT_NORMAL) x = s->std * random_normal(&s->random, (uint64_t)i);
        if (s->w.dtype == F64)
            ((double *)s->w.data)[i] = x;
        else
            ((float *)s->w.data)[i] = (float)x;
    }
}

Err rank_init_weights(Rank *r, uint64_t seed)
{
    const Model *m = r->settings.program->model;
    memset(r->base[ARENA_STATE], 0, r->settings.program->bytes[ARENA_STATE]);
    for (int p = 0; p < m->n_params; p++) {
        const Param *q = &m->param[p];
        Start s = {rank_param(r, p, PART_MASTER), q->count, q->info.init, q->info.std,
                   random_named(seed, q->name)};
        team_run(r->settings.team, (q->count + START_TILE - 1) / START_TILE, start_tile, &s);
        TRY(execute_publish(r, p));
    }
    return OK;
}

Tensor rank_input(Rank *r, int micro, Input which)
{
    const LinkedProgram *lp = r->settings.program;
    const bool ranges = which == INPUT_RANGES;
    Tensor t = {.dtype = which == INPUT_WEIGHTS ? dtype_wide(lp->model->dtype) : I32,
                .ndim = ranges ? 2 : 1};
    t.data = r->base[ARENA_STEP] + lp->input[which] + (size_t)micro * lp->input_stride;
    t.n[0] = lp->model->rows;
    t.n[1] = 4;
    t.stride[0] = ranges ? 4 : 1;
    t.stride[1] = 1;
    return t;
}

void rank_set_rows(Rank *r, int micro, int64_t rows)
{
    MUST(rows >= 0 && rows <= r->settings.program->model->rows, "%lld rows", (long long)rows);
    r->live_rows[micro] = rows;
}

/* Tokens whose weight is not 0, of all micro-batches. */
static int64_t count_live(Rank *r)
{
    int64_t live = 0;
    for (int m = 0; m < r->settings.program->micros; m++) {
        const Tensor w = rank_input(r, m, INPUT_WEIGHTS);
        for (int64_t i = 0; i < r->live_rows[m]; i++)
            live +=
                w.dtype == F64 ? ((const double *)w.data)[i] != 0 : ((const float *)w.data)[i] != 0;
    }
    return live;
}

static void set_slots(Rank *r, const StepSettings *step)
{
    const OptimSettings *o = &r->settings.optim;
    r->live_tokens = count_live(r);
    r->norm = 0;
    r->slot[SLOT_LR] = step->lr;
    r->slot[SLOT_FACTOR] = r->live_tokens ? 1.0 / (double)r->live_tokens : 0.0;
    r->slot[SLOT_BIAS1] = 1.0 - pow(o->beta1, (double)step->step);
    r->slot[SLOT_BIAS2] = 1.0 - pow(o->beta2, (double)step->step);
}

static Err walk(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i < lp->n; i++) {
        const Linked *l = &lp->list[i];
        const double begin_s = watch_begin(r, l, -1);
        switch (l->action.kind) {
        case A_RUN:
            TRY(execute_run(r, l));
            break;
        case A_REDUCE:
            TRY(execute_reduce(r, l->action.unit));
            break;
        case A_NORM:
            TRY(execute_norm(r));
            break;
        case A_UPDATE:
            TRY(execute_update(r, l->action.unit));
            break;
        case A_BIND:
            r->bound[l->action.unit] = r->pending[l->action.unit];
            break;
        default:
            MUST(false, "action %d of kind %d was linked", i, l->action.kind);
        }
        watch_end(r, l, -1, begin_s);
    }
    return OK;
}

/* Left fold over micro-batches. */
static double fold_loss(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    double sum = 0;
    for (int m = 0; m < lp->micros; m++) {
        const char *cell = r->base[ARENA_STEP] + lp->loss + (size_t)m * ARENA_ALIGN;
        float narrow;
        double wide;
        memcpy(&wide, cell, sizeof wide);
        memcpy(&narrow, cell, sizeof narrow);
        sum += dtype_wide(lp->model->dtype) == F64 ? wide : (double)narrow;
    }
    return sum;
}

Err rank_step(Rank *r, const StepSettings *step, StepResult *out)
{
    TRY(register_arenas(r));
    set_slots(r, step);
    watch_step(r, step->step);
    TRY(walk(r));
    watch_step(r, 0);
    const double sum = fold_loss(r);
    *out = (StepResult){.loss_sum = sum, .grad_norm = r->norm, .live_tokens = r->live_tokens};
    out->loss = r->live_tokens ? sum / (double)r->live_tokens : 0.0;
    return OK;
}
