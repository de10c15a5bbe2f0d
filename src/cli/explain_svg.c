/* explain_svg.c -- the schedule of a run in a file: as a picture (`sheaf explain run.yaml --svg FILE`),
 * or as the lists themselves, to be edited and given back as parallel.schedule (--schedule FILE).
 *
 * Played with one unit of time for F, I and W of each of a chunk's units, and two for B: what waits
 * for what shows, and how much of the step is waiting. Real times come with measured costs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/explain.h"
#include "schedule/svg.h"
#include "schedule/textform.h"

/* [chunks][N_PHASES]: as many as the chunk has units. */
static Err unit_costs(const Schedule *s, Arena *temp, double **out)
{
    static const double one[N_PHASES] = {
        [PHASE_F] = 1, [PHASE_I] = 1, [PHASE_W] = 1, [PHASE_B] = 2};
    TRY(ARENA_NEW(temp, s->chunks * N_PHASES, out));
    for (int c = 0; c < s->chunks; c++)
        for (int p = 0; p < N_PHASES; p++)
            (*out)[c * N_PHASES + p] = one[p] * (s->first_unit[c + 1] - s->first_unit[c]);
    return OK;
}

static Err write_text(const char *flag, const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    bool ok = f && fputs(text, f) >= 0;
    if (f) ok = fclose(f) == 0 && ok;
    if (ok) return OK;
    return err_fail(ERR_IO, "%s %s: cannot be written: %s", flag, path, strerror(errno));
}

Err explain_svg(const Facts *f, const char *path, Arena *temp)
{
    const Schedule *s = &f->job->chunks;
    PlayCosts costs = {0};
    double *cost;
    const char *picture;
    char title[256];
    Play play;
    TRY(unit_costs(s, temp, &cost));
    costs.cost = cost;
    TRY(schedule_play(s, &costs, temp, &play));
    snprintf(title, sizeof title, "%s: %s, %d stages, %d micro-batches", f->model->name,
             f->job->settings.schedule, s->ranks, s->micros);
    TRY(schedule_svg(s, &play, title, temp, &picture));
    return write_text("--svg", path, picture);
}

Err explain_schedule_file(const Facts *f, const char *path, Arena *temp)
{
    const char *text;
    TRY(schedule_print(&f->job->chunks, temp, &text));
    return write_text("--schedule", path, text);
}
