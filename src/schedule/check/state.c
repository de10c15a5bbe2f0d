/* state.c -- checks the state that actions need: parameters gathered, gradients complete, frames
 * fetched.
 *
 * One walk over each list. An item and its packs are on one stage, so their state needs no index by
 * stage:
 *
 *     gather.1 F1.0 drop.1 ... gather.1 B1.0 drop.1 reduce.1 norm update.1
 *
 * First all actions are counted (RUNs, writes of gradients, reductions). The walk then subtracts,
 * and an action that must come last checks that its count is 0. */
#include "schedule/check/check_parts.h"

typedef struct {
    int reduces;      /* still to come */
    int reduced;      /* micro-batches that are reduced, from the first */
    bool sums, parts; /* has reductions of the step's sum; of micro-batches */
    bool gathers, gathered, updated;
} PackState;

typedef struct {
    bool away;
    int16_t peer;
} FrameState;

typedef struct {
    Check *c;
    const Schedule *s;
    PackState *pack;   /* [packs]; over chunks: [items] */
    int *runs;         /* [items]: still to come */
    int16_t *writes;   /* [rows][micros]: RUNs still to come that add to gradients */
    FrameState *frame; /* [items][micros][slices] */
    int *bound;        /* [slots]: the stage + 1 that bound it last */
    int n_slots;
    bool norms, normed, ran; /* this stage has a norm; has passed it; has passed a RUN */
} StateWalk;

static int16_t *writes_of(const StateWalk *st, const Action *a)
{
    return &st->writes[schedule_row(st->s, a->unit) * st->s->micros + a->micro];
}

/* The packs of an item; a chunk counts as one. */
static int first_pack(const Schedule *s, int item)
{
    return s->level == OVER_UNITS ? schedule_first_pack(s, item) : item;
}

static int pack_item(const Schedule *s, int pack)
{
    return s->level == OVER_UNITS ? schedule_pack_unit(s, pack) : pack;
}

static void count_action(StateWalk *st, const Action *a)
{
    if (a->kind == A_BIND && st->n_slots <= a->unit) st->n_slots = a->unit + 1;
    if (a->kind == A_GATHER) st->pack[a->unit].gathers = true;
    if (a->kind == A_REDUCE) st->pack[a->unit].reduces++;
    if (a->kind == A_REDUCE && a->micro < 0) st->pack[a->unit].sums = true;
    if (a->kind == A_REDUCE && a->micro >= 0) st->pack[a->unit].parts = true;
    if (a->kind != A_RUN) return;
    st->runs[a->unit]++;
    if (schedule_writes(st->s, a)) ++*writes_of(st, a);
}

static Err state_init(Check *c, StateWalk *st)
{
    const Schedule *s = c->s;
    *st = (StateWalk){.c = c, .s = s};
    TRY(ARENA_NEW(c->temp, first_pack(s, schedule_items(s)), &st->pack));
    TRY(ARENA_NEW(c->temp, schedule_items(s), &st->runs));
    TRY(ARENA_NEW(c->temp, schedule_rows(s) * s->micros, &st->writes));
    TRY(ARENA_NEW(c->temp, schedule_cells(s), &st->frame));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) count_action(st, &s->list[stage][at]);
    return ARENA_NEW(c->temp, st->n_slots, &st->bound);
}

static Err walk_run(StateWalk *st, int stage, int at)
{
    const Action *a = &st->s->list[stage][at];
    const FrameState *frame = &st->frame[schedule_cell(st->s, a->unit, a->micro, a->slice)];
    if (st->normed) return schedule_fail(st->s, stage, at, "runs after the norm");
    /* Every unit reads its parameters in F; schedule_check_packs checks the other phases. */
    for (int p = first_pack(st->s, a->unit); p < first_pack(st->s, a->unit + 1); p++)
        if (st->pack[p].gathers && !st->pack[p].gathered && a->phase == PHASE_F)
            return schedule_fail(st->s, stage, at, "its parameters are not gathered here");
    if (frame->away && a->phase != PHASE_F)
        return schedule_fail(st->s, stage, at, "its frame was evicted and not fetched");
    st->ran = true;
    st->runs[a->unit]--;
    if (schedule_writes(st->s, a)) --*writes_of(st, a);
    return OK;
}

static Err walk_gather(StateWalk *st, int stage, int at)
{
    const Action *a = &st->s->list[stage][at];
    PackState *pack = &st->pack[a->unit];
    const bool gather = a->kind == A_GATHER;
    if (gather && pack->gathered) return schedule_fail(st->s, stage, at, "it is gathered already");
    if (!gather && !pack->gathered)
        return schedule_fail(st->s, stage, at, "it is not gathered here");
    pack->gathered = gather;
    return OK;
}

/* Reduces all micro-batches that are not reduced yet, up to the one named, or to the last. */
static Err walk_reduce(StateWalk *st, int stage, int at)
{
    const Action *a = &st->s->list[stage][at];
    PackState *pack = &st->pack[a->unit];
    const int end = a->micro < 0 ? st->s->micros : a->micro + 1;
    const int item = pack_item(st->s, a->unit);
    const int16_t *writes = &st->writes[schedule_row(st->s, item) * st->s->micros];
    int left = 0;
    if (pack->sums && pack->parts)
        return schedule_fail(st->s, stage, at, "reduced as a sum and by micro-batch: choose one");
    if (end <= pack->reduced) return schedule_fail(st->s, stage, at, "reduced twice");
    for (int i = pack->reduced; i < end; i++) left += writes[i];
    if (left > 0)
        return schedule_fail(st->s, stage, at, "RUNs that still write its gradients: %d", left);
    if (st->normed) return schedule_fail(st->s, stage, at, "reduced after the norm");
    pack->reduced = end;
    pack->reduces--;
    if (pack->reduces == 0 && end < st->s->micros)
        return schedule_fail(st->s, stage, at, "only %d of %d micro-batches are reduced", end,
                             st->s->micros);
    return OK;
}

static Err walk_norm(StateWalk *st, int stage, int at)
{
    if (st->normed) return schedule_fail(st->s, stage, at, "a second norm");
    st->normed = true;
    return OK;
}

/* Reductions cannot come after the norm, so only a stage without a norm has to check them here. */
static Err walk_update(StateWalk *st, int stage, int at)
{
    const Action *a = &st->s->list[stage][at];
    PackState *pack = &st->pack[a->unit];
    if (pack->updated) return schedule_fail(st->s, stage, at, "updated twice");
    const int runs = st->runs[pack_item(st->s, a->unit)];
    if (runs > 0) return schedule_fail(st->s, stage, at, "RUNs of it that come after: %d", runs);
    if (st->norms && !st->normed) return schedule_fail(st->s, stage, at, "updated before the norm");
    if (pack->reduces > 0)
        return schedule_fail(st->s, stage, at, "updated before its gradients are reduced");
    if (pack->gathered)
        return schedule_fail(st->s, stage, at,
                             "updated while it is gathered: the gathered copy would be stale");
    pack->updated = true;
    return OK;
}

static Err walk_frame(StateWalk *st, int stage, int at)
{
    const Action *a = &st->s->list[stage][at];
    const int *run = check_cell(st->c, a)->run;
    const int last = run[PHASE_B] >= 0 ? run[PHASE_B] : run[PHASE_W];
    FrameState *frame = &st->frame[schedule_cell(st->s, a->unit, a->micro, a->slice)];
    if (a->kind == A_FETCH) {
        if (!frame->away) return schedule_fail(st->s, stage, at, "its frame was not evicted");
        if (frame->peer != a->peer)
            return schedule_fail(st->s, stage, at, "its frame went to %d (-1: the host)",
                                 frame->peer);
        frame->away = false;
        return OK;
    }
    if (at < run[PHASE_F]) return schedule_fail(st->s, stage, at, "there is no frame before F");
    if (at > last)
        return schedule_fail(st->s, stage, at, "there is no frame after position %d", last);
    if (frame->away) return schedule_fail(st->s, stage, at, "its frame is evicted already");
    *frame = (FrameState){true, a->peer};
    return OK;
}

/* Codes are made before anything reads them. */
static Err walk_quantize(StateWalk *st, int stage, int at)
{
    for (int i = 0; i < at; i++) {
        const int kind = st->s->list[stage][i].kind;
        if (kind == A_QUANTIZE) return schedule_fail(st->s, stage, at, "a second quantize");
        if (kind == A_RUN || kind == A_GATHER)
            return schedule_fail(st->s, stage, at, "after a RUN or a GATHER of the weights");
    }
    return OK;
}

static Err walk_bind(StateWalk *st, int stage, int at)
{
    int *bound = &st->bound[st->s->list[stage][at].unit];
    if (*bound == stage + 1) return schedule_fail(st->s, stage, at, "the slot is bound twice");
    if (st->ran) return schedule_fail(st->s, stage, at, "bound after a RUN, which might call it");
    *bound = stage + 1;
    return OK;
}

typedef Err StateRule(StateWalk *st, int stage, int at);
static StateRule *const rule[N_ACTION_KINDS] = {
    [A_RUN] = walk_run,           [A_GATHER] = walk_gather, [A_DROP] = walk_gather,
    [A_REDUCE] = walk_reduce,     [A_NORM] = walk_norm,     [A_UPDATE] = walk_update,
    [A_EVICT] = walk_frame,       [A_FETCH] = walk_frame,   [A_BIND] = walk_bind,
    [A_QUANTIZE] = walk_quantize,
};

static bool has_norm(const Schedule *s, int stage)
{
    for (int at = 0; at < s->n[stage]; at++)
        if (s->list[stage][at].kind == A_NORM) return true;
    return false;
}

Err schedule_check_state(Check *c)
{
    const Schedule *s = c->s;
    StateWalk st;
    TRY(state_init(c, &st));
    int first_list = 0;
    while (!schedule_has_list(s, first_list)) first_list++;
    const bool first = has_norm(s, first_list);
    for (int stage = first_list; stage < s->stages; stage++) {
        if (!schedule_has_list(s, stage)) continue;
        st.norms = has_norm(s, stage);
        st.normed = st.ran = false;
        if (st.norms != first) /* the norm involves all stages; the others would wait forever */
            return schedule_missing(s, first ? stage : 0, action_of(A_NORM, 0), "stage %d has one",
                                    first ? 0 : stage);
        for (int at = 0; at < s->n[stage]; at++)
            if (rule[s->list[stage][at].kind]) TRY(rule[s->list[stage][at].kind](&st, stage, at));
    }
    return OK;
}
