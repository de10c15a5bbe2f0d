/* svg.c -- the schedule of a run written to a file: as a picture (`sheaf explain run.yaml --svg
 * FILE`), which shows dependencies and idle time, or as lists (--schedule FILE), which can be
 * edited and used as parallel.schedule. */
#include <stdio.h>

#include "cli/explain/explain.h"
#include "cli/new_file.h"
#include "schedule/svg.h"
#include "schedule/text_form.h"

Err explain_svg(const Facts *f, const char *path, Arena *temp)
{
    const Schedule *s = &f->job->chunks;
    const char *picture;
    char title[256];
    snprintf(title, sizeof title, "%s: %s, %d stages, %d micro-batches", f->model->name,
             f->job->settings.schedule, s->stages, s->micros);
    TRY(schedule_svg(s, &f->pipeline.play, title, temp, &picture));
    return new_file_write("--svg", path, picture);
}

Err explain_schedule_file(const Facts *f, const char *path, Arena *temp)
{
    const char *text;
    TRY(schedule_print(&f->job->chunks, temp, &text));
    return new_file_write("--schedule", path, text);
}
