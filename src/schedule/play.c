/* play.c -- the player: stages take turns, and each advances until an input is missing.
 *
 * Times do not depend on the turns: an action starts at the latest time among its inputs, whenever
 * the player reaches it. If a whole round advances no stage and actions are left, the stages wait
 * in a circle. */
#include "schedule/play.h"

#include <stdio.h>
#include <string.h>
#include "schedule/check/check.h"
#include "schedule/text_form.h"

static const double NEVER = -1;

typedef struct {
    double made[2], sent[2], posted[2]; /* times of the value of each direction, or NEVER */
} Cell;

typedef struct {
    const Schedule *s;
    const PlayCosts *costs;
    bool moves;        /* values cross stages by sends and receives */
    int16_t *stage_of; /* [items] */
    Cell *cell;        /* [items][micros][slices] */
    int *at, *held;    /* [stages]: the next action; frames held */
    double *now;       /* [stages]: the stage is free from this time on */
    bool *at_norm;     /* [stages] */
    int n_at_norm;
    double norm_time;
    Play *play;
} Player;

typedef struct {
    int direction, item, slice; /* of the action's own micro-batch */
} Need;

static Cell *cell_of(const Player *p, const Action *a)
{
    return &p->cell[schedule_cell(p->s, a->unit, a->micro, a->slice)];
}

/* Lists the inputs of an action, as in the table of play.h. A SEND needs the value made. */
static int needs_of(const Schedule *s, const Action *a, Need need[3])
{
    const int x = a->unit, q = a->slice;
    int n = 0;
    if (a->kind == A_SEND) need[n++] = (Need){action_direction(a), x, q};
    if (a->kind != A_RUN) return n;
    if (a->phase == PHASE_W) {
        need[n++] = (Need){DIRECTION_BACKWARD, x, q};
    } else if (a->phase == PHASE_F) {
        if (x > 0) need[n++] = (Need){DIRECTION_FORWARD, x - 1, q};
        if (q > 0) need[n++] = (Need){DIRECTION_FORWARD, x, q - 1};
    } else {
        need[n++] = (Need){DIRECTION_FORWARD, x, q};
        if (x + 1 < schedule_items(s)) need[n++] = (Need){DIRECTION_BACKWARD, x + 1, q};
        if (q + 1 < s->slices) need[n++] = (Need){DIRECTION_BACKWARD, x, q + 1};
    }
    return n;
}

static double later(double a, double b) { return a > b ? a : b; }

/* Returns the time at which `stage` has the value, or NEVER if the player has not reached it. */
static double there(const Player *p, int stage, int micro, const Need *need)
{
    const Cell *c = &p->cell[schedule_cell(p->s, need->item, micro, need->slice)];
    const double made = c->made[need->direction];
    if (made == NEVER || p->stage_of[need->item] == stage) return made;
    if (!p->moves) return made + p->costs->latency;
    if (c->sent[need->direction] == NEVER || c->posted[need->direction] == NEVER) return NEVER;
    return later(c->sent[need->direction], c->posted[need->direction]) + p->costs->latency;
}

static double ready(const Player *p, int stage, const Action *a)
{
    Need need[3];
    const int n = needs_of(p->s, a, need);
    double time = p->now[stage];
    for (int i = 0; i < n; i++) {
        const double when = there(p, stage, a->micro, &need[i]);
        if (when == NEVER) return NEVER;
        time = later(time, when);
    }
    return time;
}

static void step(Player *p, int stage, double start, double end)
{
    p->play->start[stage][p->at[stage]] = start;
    p->play->end[stage][p->at[stage]] = end;
    p->now[stage] = end;
    p->at[stage]++;
}

static void hold(Player *p, int stage, int frames)
{
    p->held[stage] += frames;
    if (p->play->peak[stage] < p->held[stage]) p->play->peak[stage] = p->held[stage];
}

static bool play_run(Player *p, int stage, const Action *a)
{
    static const double unit_cost[N_PHASES] = {1, 1, 1, 2};
    const double *cost = p->costs->cost ? &p->costs->cost[a->unit * N_PHASES] : unit_cost;
    const double times = p->costs->slice ? p->costs->slice[a->slice] : 1;
    const double start = ready(p, stage, a), end = start + times * cost[a->phase];
    if (start == NEVER) return false;
    if (a->phase != PHASE_W) cell_of(p, a)->made[action_direction(a)] = end;
    p->play->busy[stage] += times * cost[a->phase];
    if (a->phase != PHASE_I) hold(p, stage, a->phase == PHASE_F ? 1 : -1);
    step(p, stage, start, end);
    return true;
}

static bool is_send_of(const Player *p, int stage, const Action *recv)
{
    if (p->at[stage] >= p->s->n[stage]) return false;
    const Action *a = &p->s->list[stage][p->at[stage]];
    return a->kind == A_SEND && action_direction(a) == action_direction(recv) &&
           a->unit == recv->unit && a->micro == recv->micro && a->slice == recv->slice;
}

static bool play_recv(Player *p, int stage, const Action *a)
{
    Cell *c = cell_of(p, a);
    const int direction = action_direction(a), peer = a->peer;
    const double now = p->now[stage];
    if (p->costs->wait == PLAY_WAIT_BOTH) { /* both ends advance, or none */
        if (!is_send_of(p, peer, a) || c->made[direction] == NEVER) return false;
        c->sent[direction] = later(now, p->now[peer]);
        step(p, peer, p->now[peer], c->sent[direction] + p->costs->latency);
    }
    if (p->costs->wait != PLAY_WAIT_AT_USE && c->sent[direction] == NEVER) return false;
    c->posted[direction] = now;
    if (p->costs->wait == PLAY_WAIT_AT_USE)
        step(p, stage, now, now);
    else
        step(p, stage, now, later(now, c->sent[direction]) + p->costs->latency);
    return true;
}

static bool play_send(Player *p, int stage, const Action *a)
{
    const double start = ready(p, stage, a);
    if (start == NEVER || p->costs->wait == PLAY_WAIT_BOTH)
        return false; /* the receive advances it */
    cell_of(p, a)->sent[action_direction(a)] = start;
    step(p, stage, start, start);
    return true;
}

static bool play_norm(Player *p, int stage)
{
    if (!p->at_norm[stage]) {
        p->at_norm[stage] = true;
        p->n_at_norm++;
        p->norm_time = later(p->norm_time, p->now[stage]);
    }
    if (p->n_at_norm < p->s->stages) return false;
    step(p, stage, p->now[stage], later(p->now[stage], p->norm_time));
    return true;
}

static bool play_action(Player *p, int stage)
{
    const Action *a = &p->s->list[stage][p->at[stage]];
    switch (a->kind) {
    case A_RUN:
        return play_run(p, stage, a);
    case A_SEND:
        return play_send(p, stage, a);
    case A_RECV:
        return play_recv(p, stage, a);
    case A_NORM:
        return play_norm(p, stage);
    case A_EVICT:
    case A_FETCH:
        hold(p, stage, a->kind == A_FETCH ? 1 : -1);
        break;
    default:
        break;
    }
    step(p, stage, p->now[stage], p->now[stage]);
    return true;
}

static int describe_wait(const Player *p, int stage, const Action *a, char *out, size_t bytes)
{
    char text[ACTION_TEXT_BYTES];
    Need need[3];
    if (a->kind == A_NORM) return snprintf(out, bytes, "waits for the norm of all stages");
    if (a->kind == A_RECV) return snprintf(out, bytes, "waits for the send of stage %d", a->peer);
    for (int i = 0, n = needs_of(p->s, a, need); i < n; i++) {
        if (there(p, stage, a->micro, &need[i]) != NEVER) continue;
        Action from = action_run(PHASE_F, need[i].item, a->micro, need[i].slice);
        if (need[i].direction == DIRECTION_FORWARD)
            return snprintf(out, bytes, "waits for %s", action_text(&from, p->s->slices, text));
        from.phase = PHASE_B;
        return snprintf(out, bytes, "waits for %s, or its I",
                        action_text(&from, p->s->slices, text));
    }
    return snprintf(out, bytes, "waits for the recv of stage %d", a->peer);
}

/* Reports a deadlock, with as many blocked stages as the message holds. */
static Err stuck(const Player *p)
{
    char list[1500] = "", text[ACTION_TEXT_BYTES], wait[96];
    size_t used = 0;
    int left_out = 0;
    for (int stage = 0; stage < p->s->stages; stage++) {
        if (p->at[stage] >= p->s->n[stage]) continue;
        const Action *a = &p->s->list[stage][p->at[stage]];
        describe_wait(p, stage, a, wait, sizeof wait);
        if (sizeof list - used < 180)
            left_out++;
        else
            used += (size_t)snprintf(list + used, sizeof list - used,
                                     "%sstage %d, position %d, %s: %s", used ? "; " : "", stage,
                                     p->at[stage], action_text(a, p->s->slices, text), wait);
    }
    if (left_out > 0) snprintf(list + used, sizeof list - used, "; and %d more stages", left_out);
    return err_fail(ERR_CHECK, "schedule: deadlock: %s", list);
}

static Err player_init(const Schedule *s, const PlayCosts *costs, Arena *arena, Player *p)
{
    const int64_t cells = schedule_cells(s);
    *p = (Player){.s = s, .costs = costs, .play = p->play};
    p->moves = schedule_has_moves(s) || (s->level == OVER_UNITS && s->stages > 1);
    TRY(ARENA_NEW(arena, s->stages, &p->at));
    TRY(ARENA_NEW(arena, s->stages, &p->held));
    TRY(ARENA_NEW(arena, s->stages, &p->now));
    TRY(ARENA_NEW(arena, s->stages, &p->at_norm));
    TRY(ARENA_NEW(arena, schedule_items(s), &p->stage_of));
    TRY(ARENA_NEW(arena, cells, &p->cell));
    for (int item = 0; item < schedule_items(s); item++)
        p->stage_of[item] = (int16_t)schedule_stage_of(s, item);
    for (int64_t i = 0; i < cells; i++)
        p->cell[i] = (Cell){{NEVER, NEVER}, {NEVER, NEVER}, {NEVER, NEVER}};
    return OK;
}

static Err play_all(Player *p)
{
    bool moved = true, left = true;
    while (moved && left) {
        moved = left = false;
        for (int stage = 0; stage < p->s->stages; stage++) {
            while (p->at[stage] < p->s->n[stage] && play_action(p, stage)) moved = true;
            if (p->at[stage] < p->s->n[stage]) left = true;
        }
    }
    return left ? stuck(p) : OK;
}

Err schedule_play(const Schedule *s, const PlayCosts *costs, Arena *arena, Play *out)
{
    Play play = {0};
    Player p = {.play = &play};
    TRY(schedule_check_ranges(s));
    TRY(ARENA_NEW(arena, s->stages, &play.busy));
    TRY(ARENA_NEW(arena, s->stages, &play.peak));
    TRY(ARENA_NEW(arena, s->stages, &play.start));
    TRY(ARENA_NEW(arena, s->stages, &play.end));
    for (int stage = 0; stage < s->stages; stage++) {
        TRY(ARENA_NEW(arena, s->n[stage], &play.start[stage]));
        TRY(ARENA_NEW(arena, s->n[stage], &play.end[stage]));
    }
    const size_t mark = arena_mark(arena);
    TRY(player_init(s, costs, arena, &p));
    TRY(play_all(&p));
    TRY(play_measure(s, arena, &play));
    arena_rewind(arena, mark);
    *out = play;
    return OK;
}
