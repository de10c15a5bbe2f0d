/* load.c -- reads a schedule file, checks it, and compares it with the run's settings. */
#include <string.h>
#include "base/text.h"
#include "schedule/check/check.h"
#include "schedule/gen/generate.h"
#include "schedule/text_form.h"

static const size_t longest_file = (size_t)1 << 28;

bool schedule_is_file(const char *name) { return strpbrk(name, "/.") != NULL; }

/* Compares a count of the file with that of the run; 0: the run does not fix it. */
static Err check_count(const char *path, const char *key, int in_file, int in_run)
{
    if (in_run == 0 || in_file == in_run) return OK;
    return err_fail(ERR_CONFIG, "parallel.schedule=%s is written for %d %s; the run has %d", path,
                    in_file, key, in_run);
}

static Err check_fits(const char *path, const Schedule *s, const Pipeline *p)
{
    if (s->level != OVER_CHUNKS)
        return err_fail(ERR_CONFIG,
                        "parallel.schedule=%s runs over units; a file must run `over chunks`, "
                        "and units and transfers are added",
                        path);
    TRY(check_count(path, "stages (mesh.pp)", s->stages, p->stages));
    TRY(check_count(path, "micro-batches", s->micros, p->micros));
    TRY(check_count(path, "chunks in all (mesh.pp times parallel.chunks)", s->chunks,
                    p->stages * p->chunks));
    return check_count(path, "slices (parallel.slices)", s->slices, p->slices);
}

/* Checks that every stage has a chunk; a stage without one would hold no unit and run nothing. */
static Err check_stages(const char *path, const Schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        bool any = false;
        for (int c = 0; c < s->chunks; c++) any = any || s->stage_of[c] == stage;
        if (!any)
            return err_fail(
                ERR_CONFIG,
                "parallel.schedule=%s: its line `stages` gives stage %d no chunk; every "
                "stage needs one, or set a smaller mesh.pp",
                path, stage);
    }
    return OK;
}

Err schedule_load(const char *path, const Pipeline *p, Arena *arena, Schedule *out)
{
    const char *text;
    size_t length;
    Schedule s;
    TRY(text_read_file(path, longest_file, arena, &text, &length));
    TRY(schedule_parse(path, text, length, arena, &s));
    TRY(check_fits(path, &s, p));
    TRY(check_stages(path, &s));
    const Err err = schedule_check(&s, arena);
    if (err == ERR_CHECK) /* the user gave the list, so its fault is one of the configuration */
        return err_fail(ERR_CONFIG, "parallel.schedule=%s: %s", path, err_text());
    *out = s;
    return err;
}
