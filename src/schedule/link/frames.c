/* frames.c -- adds the moves of frames that another stage, or the host, stores for a while.
 *
 *     stage 0    F0.3 evict.0.3>3 B0.0 ... fetch.0.3<3 F0.6 B0.3      sends; receives back
 *     stage 3    ...  recv.W0.3<0 ...      send.W0.3>0 ...            receives; sends back
 *
 * A list names only the evictions of its own stage. The moves of the stage that stores the frame
 * are found here: all lists are walked together, a SEND together with its RECV. At an eviction, the
 * other stage's move is inserted at the position that the walk has reached there. Each transfer
 * therefore stands next to its other end in one order of all stages, as SENDs and RECVs do, and no
 * stages wait in a circle.
 *
 * A frame is two regions, which are sent separately: one that I reads last, one that W reads
 * last. */
#include "schedule/link/link_parts.h"

typedef struct {
    const Schedule *s;
    int *at; /* [stages]: the current position of each */
    /* [stages]: the end of the part in which other stages may wait. After it come sums over stages
     * and the norm, in which all take part. */
    int *end;
    bool *half;   /* [cells]: its I has run, so the first region is dead */
    int stage, n; /* the list that is made */
    Action *out;
    uint8_t *region;
} FrameWalk;

static void put(FrameWalk *w, Action a, int region)
{
    w->out[w->n] = a;
    w->region[w->n++] = (uint8_t)region;
}

/* Writes an eviction, or a fetch, for each region that is still live. */
static void put_frame(FrameWalk *w, const Linker *k, const Action *a, int stage)
{
    const Program *p = linked_program(k->lp, a->unit, a->micro, a->slice);
    const bool half = w->half[schedule_cell(w->s, a->unit, a->micro, a->slice)];
    Action mine = *a;
    if (stage != w->stage && a->peer != w->stage) return;
    if (stage != w->stage)
        mine = action_move(a->kind == A_EVICT ? A_RECV : A_SEND, PHASE_W, a->unit, a->micro,
                           a->slice, stage);
    for (int r = half ? REGION_FRAME_W : REGION_FRAME_I; r <= REGION_FRAME_W; r++)
        if (p->bytes[r]) put(w, mine, r);
}

/* True if the peer is at the other end of this SEND or RECV. */
static bool meets(const FrameWalk *w, const Action *a)
{
    if (w->at[a->peer] >= w->end[a->peer]) return false;
    const Action *b = &w->s->list[a->peer][w->at[a->peer]];
    return b->kind == (a->kind == A_SEND ? A_RECV : A_SEND) && b->phase == a->phase &&
           b->unit == a->unit && b->micro == a->micro && b->slice == a->slice;
}

/* Executes the stage's current action; false if it has to wait. */
static bool take(FrameWalk *w, const Linker *k, int stage)
{
    const Action *a = &w->s->list[stage][w->at[stage]];
    if (is_move(a)) {
        if (!meets(w, a)) return false;
        if (a->peer == w->stage) put(w, w->s->list[w->stage][w->at[w->stage]], 0);
        w->at[a->peer]++;
    }
    if (a->kind == A_RUN && a->phase == PHASE_I)
        w->half[schedule_cell(w->s, a->unit, a->micro, a->slice)] = true;
    if (a->kind == A_EVICT || a->kind == A_FETCH)
        put_frame(w, k, a, stage);
    else if (stage == w->stage)
        put(w, *a, 0);
    w->at[stage]++;
    return true;
}

static void find_ends(FrameWalk *w)
{
    for (int stage = 0; stage < w->s->stages; stage++)
        for (int i = 0; i < w->s->n[stage]; i++) {
            const Action *a = &w->s->list[stage][i];
            if (a->kind == A_RUN || is_move(a) || a->kind == A_EVICT || a->kind == A_FETCH)
                w->end[stage] = i + 1;
        }
}

static Err walk_all(FrameWalk *w, const Linker *k)
{
    find_ends(w);
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < w->s->stages; stage++)
            while (w->at[stage] < w->end[stage] && take(w, k, stage)) moved = true;
    }
    for (int stage = 0; stage < w->s->stages; stage++)
        if (w->at[stage] < w->end[stage])
            return err_fail(
                ERR_CHECK,
                "stage %d waits at position %d for stage %d, which waits too: evictions "
                "are placed in lists that have each send next to its receive",
                stage, w->at[stage], w->s->list[stage][w->at[stage]].peer);
    for (int i = w->end[w->stage]; i < w->s->n[w->stage]; i++) put(w, w->s->list[w->stage][i], 0);
    return OK;
}

Err link_frames(Linker *k)
{
    const Schedule *s = k->s;
    FrameWalk w = {.s = s, .stage = k->lp->stage};
    int64_t room = s->n[w.stage], frames = 0;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++)
            frames += s->list[stage][i].kind == A_EVICT || s->list[stage][i].kind == A_FETCH;
    k->from = s->list[w.stage];
    k->n_from = s->n[w.stage];
    if (frames == 0) return OK;
    TRY(ARENA_NEW(k->arena, room + 2 * frames, &w.out));
    TRY(ARENA_NEW(k->arena, room + 2 * frames, &w.region));
    TRY(ARENA_NEW(k->arena, s->stages, &w.at));
    TRY(ARENA_NEW(k->arena, s->stages, &w.end));
    TRY(ARENA_NEW(k->arena, schedule_cells(s), &w.half));
    TRY(walk_all(&w, k));
    k->from = w.out;
    k->from_region = w.region;
    k->n_from = w.n;
    return OK;
}

/* The count is in words of 4 bytes, because a region holds values of several types. */
void frame_step(const Linker *k, int at, LinkedStep *out)
{
    LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[at];
    const Action *a = &l->action;
    const Program *p = linked_program(lp, a->unit, a->micro, a->slice);
    const bool gives = a->kind == A_EVICT || a->kind == A_SEND, away = a->peer < 0;
    const int64_t count = (int64_t)(p->bytes[l->region] + 3) / 4;
    const Ref here = {lp->rank, ARENA_WORK, l->base[l->region], count, I32};
    Ref there = {lp->rank, ARENA_HOST, l->base[REGION_HOST], count, I32};
    if (!away) there = (Ref){lp->pp_group.rank[a->peer], ARENA_WORK, 0, count, I32};
    Action named = *a;
    named.phase = PHASE_F; /* the stages have the move in different phases */
    *out = (LinkedStep){.kind = away ? STEP_COPY : STEP_TRANSFER, .what = "frame"};
    out->t = (Transfer){.kind = gives ? COMM_SEND : COMM_RECV,
                        .group = lp->pp_group,
                        .purpose = PURPOSE_FRAME,
                        .from = gives ? here : there,
                        .to = gives ? there : here,
                        .instr = at,
                        .tag = action_tag(&named, l->region == REGION_FRAME_W)};
    if (!away) l->begun = 0;
}
