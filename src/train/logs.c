/* logs.c -- what rank 0 writes and prints of a step, and files that cannot be written.
 *
 *     run.on_save_error=stop       the next step is the last: all ranks save it, then the run ends
 *                                  with the error
 *     run.on_save_error=continue   a warning, and lines are missing until there is room again
 *
 * A line is written whole or not at all (lines.h). */
#define _DEFAULT_SOURCE
#include "base/clock.h"
#include "train/loop_parts.h"

/* Seconds that the line of a step stays on a terminal. */
#define SHOWN_S 0.25

/* Steps in a row that must be logged before the logs count as written again. On a full disk a
 * short line may fit where a longer one did not; each such line must not bring new warnings. */
#define STEADY_STEPS 16

/* Prints a line that the next step's line does not overwrite. */
static void report_skipped(const TrainLoop *l, const Metrics *m, const char *why)
{
    fprintf(l->s->out,
            "step %lld is skipped, nothing is updated: %s (loss %g, norm %g); its samples are in "
            "%s/skipped.jsonl; %d consecutive, the run ends after %d\n",
            (long long)m->step, why, m->loss, m->grad_norm, l->s->dir, l->skips, MAX_SKIPS);
}

/* False for a line that a terminal would show for less than SHOWN_S. */
static bool is_shown(const TrainLoop *l, const Metrics *m)
{
    const bool stays = !l->s->terminal || m->has_valid || m->skipped || m->step == m->steps;
    return stays || now_s() - l->shown_s >= SHOWN_S;
}

/* Writes the step to every file that has room; returns the first error. */
static Err write_files(TrainLoop *l, const Metrics *m, const char *why)
{
    const int64_t global = l->s->global;
    const Err err = samples_write(&l->samples, &(SampleStep){.step = m->step,
                                                             .cursor = l->at.cursor - global,
                                                             .n = global,
                                                             .loss = m->loss,
                                                             .grad_norm = m->grad_norm,
                                                             .why = why});
    const Err metrics = metrics_write(&l->sinks, m);
    return metrics != OK ? metrics : err;
}

/* Handles an error of the step's files, whose text is in err_text(). */
static void note_error(TrainLoop *l, int64_t step)
{
    const bool on = l->s->save.despite_errors;
    l->logged = 0;
    if (l->unlogged++ > 0) return;
    snprintf(l->log_error, sizeof l->log_error, "step %lld: %s", (long long)step, err_text());
    loop_warn(l, "%s; %s", l->log_error,
              on ? "training continues without these lines (run.on_save_error=continue)"
                 : "the run ends after a checkpoint");
}

static void note_success(TrainLoop *l, int64_t step)
{
    if (l->unlogged == 0 || ++l->logged < STEADY_STEPS) return;
    loop_warn(l, "steps are logged again since step %lld at the latest; %lld before it are missing",
              (long long)step - STEADY_STEPS + 1, (long long)l->unlogged);
    l->unlogged = 0;
}

void loop_write_step(TrainLoop *l, const Metrics *m)
{
    const TrainSettings *s = l->s;
    const char *why = loop_skip_reason(m);
    if (write_files(l, m, why) != OK)
        note_error(l, m->step);
    else if (s->save.despite_errors)
        note_success(l, m->step);
    if (is_shown(l, m)) {
        metrics_line(s->out, s->terminal, m, l->mean_s * (double)(s->lr.steps - m->step));
        l->shown_s = now_s();
    }
    if (why && s->terminal && !m->has_valid && m->step < m->steps) fputc('\n', s->out);
    if (why) report_skipped(l, m, why);
}

Err loop_log_error(const TrainLoop *l)
{
    if (l->unlogged == 0 || l->s->save.despite_errors) return OK;
    const bool saved = l->s->save.folder && l->saved_step == l->at.step;
    return err_fail(ERR_IO, "%s; %s%s", l->log_error,
                    saved ? "the latest step is saved: started again, the run resumes there; " : "",
                    "run.on_save_error=continue trains on without these lines");
}

Err loop_close_logs(TrainLoop *l)
{
    Err err = metrics_close(&l->sinks);
    if (err == OK) err = samples_close(&l->samples);
    if (err == OK || !l->s->save.despite_errors) return err;
    loop_warn(l, "%s (run.on_save_error=continue)", err_text());
    return OK;
}
