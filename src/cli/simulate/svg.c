/* svg.c -- a simulated step as a picture: the RUNs of each stage over chunks, at the times
 * of the clock, drawn as `sheaf explain --svg` draws a schedule (schedule/svg.h). */
#include <stdio.h>

#include "cli/new_file.h"
#include "cli/simulate/simulate.h"
#include "schedule/svg.h"

typedef struct {
    const Schedule *s; /* over chunks */
    Play play;         /* in milliseconds */
    int *at;           /* [stages]: the RUN that is being played */
    int *chunk_of;     /* [units] */
    int stage_ranks;
} StepDrawing;

/* The RUN over chunks that an action of a unit belongs to. */
static bool is_run_of(const StepDrawing *d, const Action *run, const Action *a)
{
    return run->kind == A_RUN && run->phase == a->phase && run->micro == a->micro &&
           run->slice == a->slice && run->unit == d->chunk_of[a->unit];
}

/* Actions that take no time, evictions, are where the RUN before them ends. */
static Err draw_span(void *context, const ClockSpan *span)
{
    StepDrawing *d = context;
    const int stage = span->rank / d->stage_ranks;
    if (span->rank % d->stage_ranks != 0 || span->kind != SPAN_WORK || span->action.kind != A_RUN)
        return OK;
    const Action *list = d->s->list[stage];
    int *at = &d->at[stage];
    const double start = 1e3 * span->start_s, end = 1e3 * span->end_s;
    if (*at < 0 || !is_run_of(d, &list[*at], &span->action)) {
        for (++*at; !is_run_of(d, &list[*at], &span->action); ++*at)
            d->play.start[stage][*at] = d->play.end[stage][*at] = start;
        d->play.start[stage][*at] = start;
    }
    d->play.end[stage][*at] = end;
    d->play.busy[stage] += end - start;
    return OK;
}

/* The frames that stages hold do not depend on times: those of the player. */
static Err open_drawing(StepDrawing *d, Arena *temp)
{
    TRY(schedule_play(d->s, &(PlayCosts){0}, temp, &d->play));
    TRY(ARENA_NEW(temp, d->s->stages, &d->at));
    TRY(ARENA_NEW(temp, schedule_units(d->s), &d->chunk_of));
    for (int c = 0; c < d->s->chunks; c++)
        for (int u = d->s->first_unit[c]; u < d->s->first_unit[c + 1]; u++) d->chunk_of[u] = c;
    for (int stage = 0; stage < d->s->stages; stage++) {
        d->at[stage] = -1;
        d->play.busy[stage] = 0;
        for (int i = 0; i < d->s->n[stage]; i++)
            d->play.start[stage][i] = d->play.end[stage][i] = 0;
    }
    return OK;
}

static void measure(StepDrawing *d, double step_ms)
{
    double busiest = 0, busy = 0;
    for (int stage = 0; stage < d->s->stages; stage++) {
        if (d->play.busy[stage] > busiest) busiest = d->play.busy[stage];
        busy += d->play.busy[stage];
    }
    d->play.makespan = step_ms;
    d->play.bubble = step_ms - busiest;
    d->play.idle = 1 - busy / (d->s->stages * step_ms);
}

Err simulate_svg(const SimulationReport *s, StepClock *clock, const char *path, Arena *temp)
{
    const size_t mark = arena_mark(temp);
    const Job *job = s->all.shared;
    StepDrawing d = {.s = &job->chunks};
    const ClockWatch watch = {draw_span, &d};
    char title[256];
    const char *picture;
    StepTime time;
    d.stage_ranks = s->mesh->world / d.s->stages;
    TRY(open_drawing(&d, temp));
    clock_watch(clock, &watch);
    TRY(clock_play(clock, s->cluster, &time));
    clock_watch(clock, NULL);
    measure(&d, 1e3 * time.step_s);
    snprintf(title, sizeof title, "%s, %s on %s: a step of %.6g ms; times in ms",
             s->settings->config->name, job_schedule(s->settings), s->cluster->name,
             1e3 * time.step_s);
    TRY(schedule_svg(d.s, &d.play, title, temp, &picture));
    TRY(new_file_write("--svg", path, picture));
    arena_rewind(temp, mark);
    return OK;
}
