/* plan_measure.c -- `sheaf plan --measure K`: runs the best K plans for a few steps, calibrates the
 * cluster by them, and plans again.
 *
 *     planned    measured   calibrated   plan
 *     12.1 ms    15.0 ms    14.8 ms      dp=2 ...
 *     12.4 ms    14.1 ms    14.2 ms      tp=2 ...       measured the fastest: it becomes the best
 *
 * A plan runs as `sheaf train` would run it: in a process of its own, or under the launcher of
 * --launcher, in a folder that is removed afterwards. */
#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/plan_verb.h"

/* Steps of a run; the first two touch memory and choose kernels. */
enum { RUN_STEPS = 7, SKIPPED_STEPS = 2, MAX_WORDS = 256, MAX_LINE = 400, MAX_TEMP = 200 };

typedef struct {
    char dir[256], plan[300], run[300], log[300];
} MeasureFolder;

/* ---- the folder ---- */

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *at)
{
    (void)s;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_folder(const MeasureFolder *f)
{
    nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static Err open_folder(MeasureFolder *f)
{
    const char *temp = getenv("TMPDIR");
    if (!temp || !*temp || strlen(temp) > MAX_TEMP) temp = "/tmp";
    snprintf(f->dir, sizeof f->dir, "%s/sheaf-measure-XXXXXX", temp);
    if (!mkdtemp(f->dir))
        return err_fail(ERR_IO, "plan --measure: %s: cannot be made: %s", f->dir, strerror(errno));
    snprintf(f->plan, sizeof f->plan, "%s/plan.yaml", f->dir);
    snprintf(f->run, sizeof f->run, "%s/run", f->dir);
    snprintf(f->log, sizeof f->log, "%s/log", f->dir);
    return OK;
}

/* ---- a run ---- */

static Err write_plan(PlanVerb *v, const PlanPoint *p, const char *path)
{
    Config *c;
    const char *text;
    Text t = text_in(v->arena);
    TRY(ARENA_NEW(v->arena, 1, &c));
    TRY(plan_config_of(v->report.config, p, v->arena, c));
    TRY(plan_file_text(c, v->report.model, NULL, v->temp, &t));
    TRY(text_done(&t, &text));
    FILE *f = fopen(path, "w");
    const bool good = f && fputs(text, f) >= 0;
    if (f && fclose(f) == 0 && good) return OK;
    return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

/* True for arguments that the measured run has in another value. */
static bool is_of_run(const char *set)
{
    static const char *const prefix[] = {
        "run.steps=",       "run.dir=",          "run.fresh=", "run.save_every=",
        "run.valid_every=", "run.save_minutes=", "run.resume="};
    for (int i = 0; i < (int)(sizeof prefix / sizeof *prefix); i++)
        if (strncmp(set, prefix[i], strlen(prefix[i])) == 0) return true;
    return false;
}

static Err command_of(const PlanVerb *v, const MeasureFolder *f, const char **word)
{
    char own[4096], set[400];
    const char **args;
    int n_args, n = 0;
    const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0) return err_fail(ERR_IO, "/proc/self/exe: %s", strerror(errno));
    own[length] = 0;
    TRY(plan_other_settings(v, &args, &n_args));
    if (n_args + 20 > MAX_WORDS)
        return err_fail(ERR_CONFIG, "plan --measure: more than %d arguments", MAX_WORDS - 20);
    if (v->flag.launcher) {
        const char *shell[] = {"/bin/sh", "-c", NULL, "sh"};
        Text t = text_in(v->arena);
        text_add(&t, "exec %s \"$@\"", v->flag.launcher);
        TRY(text_done(&t, &shell[2]));
        for (int i = 0; i < 4; i++) word[n++] = shell[i];
    }
    TRY(arena_string(v->arena, own, &word[n++]));
    word[n++] = "train";
    if (v->args.file) word[n++] = v->args.file;
    for (int i = 0; i < n_args; i++)
        if (!is_of_run(args[i])) word[n++] = args[i];
    word[n++] = "--plan";
    word[n++] = f->plan;
    snprintf(set, sizeof set, "run.dir=%s", f->run);
    TRY(arena_string(v->arena, set, &word[n++]));
    snprintf(set, sizeof set, "run.steps=%d", RUN_STEPS);
    TRY(arena_string(v->arena, set, &word[n++]));
    word[n++] = "run.fresh=true";
    word[n++] = "run.save_every=0";
    word[n++] = "run.valid_every=0";
    word[n] = NULL;
    return OK;
}

/* The last line of a log that is not empty. */
static void last_line(const char *path, char *out, size_t bytes)
{
    char line[MAX_LINE];
    FILE *f = fopen(path, "r");
    *out = 0;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (*line) snprintf(out, bytes, "%s", line);
    }
    if (f) fclose(f);
}

static Err run_command(const char **word, const char *log, int *status)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0) return err_fail(ERR_NOMEM, "plan --measure: no process: %s", strerror(errno));
    if (pid == 0) {
        if (!freopen(log, "w", stdout) || dup2(fileno(stdout), STDERR_FILENO) < 0) _exit(126);
        execv(word[0], (char *const *)(uintptr_t)word);
        _exit(127);
    }
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR) return err_fail(ERR_IO, "plan --measure: waiting: %s", strerror(errno));
    return OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the run's steps, without the first ones. */
static Err read_steps(const MeasureFolder *f, double *out)
{
    char path[400], line[2048];
    double ms[RUN_STEPS];
    int n = 0, step = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", f->run);
    FILE *in = fopen(path, "r");
    while (in && fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "\"step_ms\":");
        if (at && step++ >= SKIPPED_STEPS && n < RUN_STEPS)
            ms[n++] = strtod(at + strlen("\"step_ms\":"), NULL);
    }
    if (in) fclose(in);
    if (n == 0 || !(ms[0] > 0))
        return err_fail(ERR_CHECK,
                        "plan --measure: a run ended with status 0 and measured no steps; does "
                        "--launcher start the command that follows it?");
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    *out = ms[n / 2] / 1e3;
    return OK;
}

static Err run_plan(PlanVerb *v, const PlanPoint *p, double *seconds)
{
    MeasureFolder f;
    const char *word[MAX_WORDS], *words;
    char line[MAX_LINE];
    int status = 0;
    Text t = text_in(v->arena);
    plan_point_text(p, &t);
    TRY(text_done(&t, &words));
    TRY(open_folder(&f));
    Err err = write_plan(v, p, f.plan);
    if (err == OK) err = command_of(v, &f, word);
    if (err == OK) err = run_command(word, f.log, &status);
    if (err == OK && status != 0) {
        last_line(f.log, line, sizeof line);
        if (!*line) snprintf(line, sizeof line, "it printed nothing");
        err =
            err_fail(ERR_CONFIG,
                     "plan --measure: the run of %s ended with status %d: %s\n       leave out "
                     "--measure to plan without runs",
                     words, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), line);
    }
    if (err == OK) err = read_steps(&f, seconds);
    remove_folder(&f);
    return err;
}

/* ---- calibration ---- */

static bool same_plan(const PlanPoint *a, const PlanPoint *b, Arena *temp, Err *err)
{
    const char *x = NULL, *y = NULL;
    Text s = text_in(temp), t = text_in(temp);
    plan_point_text(a, &s);
    plan_point_text(b, &t);
    if (*err == OK) *err = text_done(&s, &x);
    if (*err == OK) *err = text_done(&t, &y);
    return *err == OK && strcmp(x, y) == 0 && !a->unit == !b->unit;
}

static Err measure_row(PlanVerb *v, const PlanRow *row)
{
    PlanReport *r = &v->report;
    Err err = OK;
    for (int i = 0; i < r->n_measured; i++)
        if (same_plan(&r->measured[i].row.point, &row->point, v->temp, &err) || err != OK)
            return err;
    if (r->n_measured == MAX_PLAN_ROWS) return OK;
    MeasuredPlan *m = &r->measured[r->n_measured];
    *m = (MeasuredPlan){.row = *row, .planned_s = row->time.step_s};
    progress_parts(&v->line, r->n_measured, v->measure + 1);
    TRY(run_plan(v, &row->point, &m->measured_s));
    r->n_measured++;
    return OK;
}

/* The cluster by all runs, whose plans were planned with the cluster of the file. */
static Err calibrate(PlanVerb *v, const Cluster *file)
{
    PlanReport *r = &v->report;
    MeasuredStep step[MAX_PLAN_ROWS];
    Cluster *scaled;
    for (int i = 0; i < r->n_measured; i++)
        step[i] = (MeasuredStep){r->measured[i].first, r->measured[i].measured_s};
    TRY(ARENA_NEW(v->arena, 1, &scaled));
    r->factors = calibrate_factors(step, r->n_measured);
    TRY(cluster_scale(file, r->factors, v->arena, scaled));
    r->cluster = v->space.cluster = scaled;
    *v->ordered = *scaled;
    return plan_cache_open(v->arena, &v->cache);
}

/* The row of a measured plan on the calibrated cluster. */
static Err time_row(PlanVerb *v, MeasuredPlan *m)
{
    PlanFixed fixed = v->space.fixed;
    PlanSearch s;
    TRY(plan_open_search(v, m->row.ranks, &fixed, &s));
    return plan_time(&s, &m->row.point, &m->row.time);
}

/* The plan whose run was the fastest becomes the first row. */
static void take_fastest(PlanReport *r)
{
    int best = 0;
    for (int i = 1; i < r->n_measured; i++)
        if (r->measured[i].measured_s < r->measured[best].measured_s) best = i;
    const PlanRow first = r->row[0];
    int n = 1;
    for (int i = 0; i < r->n_rows; i++)
        if (!plan_same_mesh(&r->row[i].point, &r->measured[best].row.point)) n++;
    for (int i = r->n_rows - 1, to = n - 1; i >= 0; i--)
        if (!plan_same_mesh(&r->row[i].point, &r->measured[best].row.point))
            r->row[to--] = r->row[i];
    r->n_rows = n;
    r->row[0] = r->measured[best].row;
    r->row[0].bound_s = first.bound_s;
    r->row[0].alike_s = r->row[0].point.unit ? first.alike_s : r->row[0].time.step_s;
    r->row[0].alike_bound_s = first.alike_bound_s;
    r->row[0].complete = first.bound_s >= r->row[0].time.step_s;
}

Err plan_measure(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const Cluster *file = v->space.cluster;
    const double start = now_s();
    if (!v->measure) return OK;
    v->line = progress_begin("measuring", r->model->name, 0);
    Err err = OK;
    for (int i = 0; i < r->n_rows && i < v->measure && err == OK; i++)
        err = measure_row(v, &r->row[i]);
    progress_end(&v->line);
    TRY(err);
    for (int i = 0; i < r->n_measured; i++) r->measured[i].first = r->measured[i].row.time;
    TRY(calibrate(v, file));
    r->measure_s = now_s() - start;
    TRY(plan_search_all(v));
    v->line = progress_begin("measuring", r->model->name, 0);
    err = measure_row(v, &r->row[0]); /* unless it was measured */
    progress_end(&v->line);
    TRY(err);
    for (int i = 0; i < r->n_measured; i++) TRY(time_row(v, &r->measured[i]));
    take_fastest(r);
    return OK;
}
