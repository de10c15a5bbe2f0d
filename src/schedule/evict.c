/* evict.c -- one walk over each list: fetch the frame of the next RUN, run, evict above the
 * limit. */
#include "schedule/evict.h"

typedef struct {
    Action run; /* any RUN of the frame: its (unit, micro, slice) names the frame */
    int next;   /* position of its next use */
    bool away;
} EvictFrame;

typedef struct {
    const Action *list;
    const int *next; /* [n]: position of the next use of each RUN's frame */
    int n, keep;
    EvictFrame *frame;
    int n_frames, here, away, max_away;
    Action *out;
    int made;
} EvictWalk;

static EvictFrame *frame_of(const EvictWalk *w, const Action *run)
{
    for (int i = 0; i < w->n_frames; i++) {
        const Action *a = &w->frame[i].run;
        if (a->unit == run->unit && a->micro == run->micro && a->slice == run->slice)
            return &w->frame[i];
    }
    return NULL;
}

/* Appends an EVICT or a FETCH. Its peer is set when the lists of all stages are known. */
static void move(EvictWalk *w, EvictFrame *f, ActionKind kind)
{
    const Action *a = &f->run;
    const int out = kind == A_EVICT ? 1 : -1;
    w->out[w->made++] = action_move(kind, PHASE_F, a->unit, a->micro, a->slice, -1);
    f->away = kind == A_EVICT;
    w->here -= out;
    w->away += out;
    if (w->max_away < w->away) w->max_away = w->away;
}

static void fetch_for(EvictWalk *w, int at, int room)
{
    if (at >= w->n || w->list[at].phase == PHASE_F || w->here + room > w->keep + 1) return;
    EvictFrame *f = frame_of(w, &w->list[at]);
    if (f && f->away) move(w, f, A_FETCH);
}

/* Evicts the frame with the latest next use after the RUN `at`. A frame that would be fetched again
 * at once is kept: the next RUN is no forward, so there is room for it. */
static void evict_latest(EvictWalk *w, int at)
{
    EvictFrame *latest = NULL;
    for (int i = 0; i < w->n_frames; i++) {
        EvictFrame *f = &w->frame[i];
        if (!f->away && (!latest || f->next > latest->next)) latest = f;
    }
    if (latest->next <= at + 2 && w->list[at + 1].phase != PHASE_F) return;
    move(w, latest, A_EVICT);
}

static void walk_run(EvictWalk *w, int at)
{
    const Action *a = &w->list[at];
    const bool forward = a->phase == PHASE_F;
    fetch_for(w, at, 1);
    fetch_for(w, at + 1, 1 + forward); /* the next RUN's frame too, if there is room */
    w->out[w->made++] = *a;
    if (forward) {
        w->frame[w->n_frames++] = (EvictFrame){*a, w->next[at], false};
        w->here++;
    } else {
        EvictFrame *f = frame_of(w, a);
        f->next = w->next[at];
        if (a->phase != PHASE_I) { /* the frame's last use */
            *f = w->frame[--w->n_frames];
            w->here--;
        }
    }
    if (w->here > w->keep) evict_latest(w, at);
}

/* Finds for each RUN of the stage the next use of its frame; `latest` is [cells]. */
static void find_next(const Schedule *s, int stage, int *latest, int *next)
{
    for (int at = s->n[stage] - 1; at >= 0; at--) {
        const Action *a = &s->list[stage][at];
        int *use = &latest[schedule_cell(s, a->unit, a->micro, a->slice)];
        next[at] = a->phase == PHASE_B || a->phase == PHASE_W ? s->n[stage] : *use;
        *use = at;
    }
}

static int peak_of(const Schedule *s, int stage)
{
    int held = 0, peak = 0;
    for (int at = 0; at < s->n[stage]; at++) {
        const Phase phase = s->list[stage][at].phase;
        held += phase == PHASE_F ? 1 : phase == PHASE_I ? 0 : -1;
        if (peak < held) peak = held;
    }
    return peak;
}

static int half_of_largest_pair(const Schedule *s)
{
    int largest = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        const int pair = peak_of(s, stage) + peak_of(s, s->stages - 1 - stage);
        if (largest < pair) largest = pair;
    }
    return (largest + 2) / 2; /* half of one more, rounded up */
}

static Err evict_list(const Schedule *s, int stage, int keep, int *latest, Arena *arena,
                      EvictWalk *w)
{
    const int64_t n = s->n[stage];
    int *next;
    *w = (EvictWalk){.list = s->list[stage], .n = s->n[stage], .keep = keep};
    TRY(ARENA_NEW(arena, 4 * n, &w->out)); /* a RUN, two fetches, an evict */
    TRY(ARENA_NEW(arena, n, &next));
    TRY(ARENA_NEW(arena, n, &w->frame));
    find_next(s, stage, latest, next);
    w->next = next;
    for (int at = 0; at < w->n; at++) walk_run(w, at);
    return OK;
}

static Err check_input(const Schedule *s, int keep)
{
    if (keep < 0)
        return err_fail(ERR_CONFIG, "parallel.evict keeps %d frames; allowed are 1 and more", keep);
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++)
            if (s->level != OVER_CHUNKS || s->list[stage][at].kind != A_RUN)
                return err_fail(ERR_CHECK,
                                "schedule: stage %d, position %d: a %s over %s; frames are evicted "
                                "where there are RUNs over chunks only",
                                stage, at, action_kind_name(s->list[stage][at].kind),
                                s->level == OVER_CHUNKS ? "chunks" : "units");
    return OK;
}

Err schedule_evict(const Schedule *s, int keep, Arena *arena, Schedule *out)
{
    Schedule made = *s;
    EvictWalk *walk;
    int *latest;
    TRY(check_input(s, keep));
    if (keep == 0) keep = half_of_largest_pair(s);
    TRY(ARENA_NEW(arena, s->stages, &made.n));
    TRY(ARENA_NEW(arena, s->stages, &made.list));
    TRY(ARENA_NEW(arena, s->stages, &walk));
    TRY(ARENA_NEW(arena, schedule_cells(s), &latest));
    for (int stage = 0; stage < s->stages; stage++)
        TRY(evict_list(s, stage, keep, latest, arena, &walk[stage]));
    for (int stage = 0; stage < s->stages; stage++) {
        const EvictWalk *w = &walk[stage];
        const int partner = s->stages - 1 - stage;
        /* A stage that evicts has no room itself, so no stage becomes its own partner. */
        const bool has_room = peak_of(s, partner) + w->max_away <= keep + 1;
        for (int at = 0; has_room && at < w->made; at++)
            if (w->out[at].kind != A_RUN) w->out[at].peer = (int16_t)partner;
        made.list[stage] = w->out;
        made.n[stage] = w->made;
    }
    *out = made;
    return OK;
}
