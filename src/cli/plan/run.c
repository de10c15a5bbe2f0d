/* run.c -- runs a plan for a few steps, as `sheaf train` would: in a process of its own, or
 * under the launcher of --launcher.
 *
 *     /tmp/sheaf-measure-XXXXXX    plan.yaml, log, run/     removed afterwards, also after a signal
 *
 * A signal that ends `sheaf plan` goes to the run first, which may have processes of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/plan/verb.h"

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

/* ---- signals ---- */

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_ENDS = sizeof ends / sizeof *ends };
static volatile sig_atomic_t ended_by, child; /* 0: no signal; no process */

typedef struct {
    sigset_t ends;
    struct sigaction before[N_ENDS];
} RunSignals;

static void pass_on(int signal_number)
{
    ended_by = signal_number;
    if (child > 0) kill((pid_t)child, signal_number);
}

/* Signals that end the process wait until the run has ended and its folder is removed. */
static void hold_signals(RunSignals *s)
{
    ended_by = 0;
    sigemptyset(&s->ends);
    for (int i = 0; i < N_ENDS; i++) {
        const struct sigaction act = {.sa_handler = pass_on};
        sigaction(ends[i], NULL, &s->before[i]);
        if (s->before[i].sa_handler == SIG_IGN) continue;
        sigaddset(&s->ends, ends[i]);
        sigaction(ends[i], &act, NULL);
    }
}

static void release_signals(const RunSignals *s)
{
    for (int i = 0; i < N_ENDS; i++) sigaction(ends[i], &s->before[i], NULL);
    if (ended_by) raise(ended_by);
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

static Err run_command(const char **word, const char *log, const RunSignals *s, int *status)
{
    sigset_t before;
    fflush(NULL);
    sigprocmask(SIG_BLOCK, &s->ends, &before);
    const pid_t pid = ended_by ? -1 : fork();
    if (pid > 0) child = pid;
    if (pid != 0) sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0 && ended_by) return err_fail(ERR_CHECK, "plan --measure: ended by a signal");
    if (pid < 0) return err_fail(ERR_NOMEM, "plan --measure: no process: %s", strerror(errno));
    if (pid == 0) {
        for (int i = 0; i < N_ENDS; i++) sigaction(ends[i], &s->before[i], NULL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        if (!freopen(log, "w", stdout) || dup2(fileno(stdout), STDERR_FILENO) < 0) _exit(126);
        execv(word[0], (char *const *)(uintptr_t)word);
        _exit(127);
    }
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR) return err_fail(ERR_IO, "plan --measure: waiting: %s", strerror(errno));
    child = 0;
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

Err plan_run(PlanVerb *v, const PlanPoint *p, double *seconds)
{
    MeasureFolder f;
    RunSignals signals;
    const char *word[MAX_WORDS], *words;
    char line[MAX_LINE];
    int status = 0;
    Text t = text_in(v->arena);
    plan_point_text(p, &t);
    TRY(text_done(&t, &words));
    hold_signals(&signals);
    Err err = open_folder(&f);
    if (err != OK) return release_signals(&signals), err;
    err = write_plan(v, p, f.plan);
    if (err == OK) err = command_of(v, &f, word);
    if (err == OK) err = run_command(word, f.log, &signals, &status);
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
    release_signals(&signals);
    return err;
}
