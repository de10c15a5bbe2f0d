/* worker.c -- the parent and the worker.
 *
 * A signal from the terminal reaches both processes. A signal that another process sends to the
 * parent is forwarded to the worker, so that `kill` on the pid that the user sees takes effect. The
 * parent of a training run also passes on its output (relay.h). */
#define _GNU_SOURCE
#include "cli/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/team.h"
#include "cli/verbs.h"
#include "cli/watchdog.h"
#include "comm/mpi.h"

enum { MAX_REPORTED = 16, LATEST = 2 }; /* ranks in a crash report; transfers of each */
enum { LOOK_MS = 500 };                 /* between two looks of the watchdog */

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGQUIT};
static const int deadly[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
enum { N_PASSED_ON = 7, N_DEADLY = 5 };

/* Global, because a signal handler has no context argument. */
static FlightRecorder *crash_recorder;
static struct sigaction before_crash[N_DEADLY];

int worker_flush(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fputs("sheaf: standard output cannot be written; is the disk full?\n", stderr);
    return status ? status : 1;
}

/* ---- the worker ---- */

/* Records the rank of the crashing thread, then restores the previous handler. A fault repeats when
 * this handler returns; a signal from kill() is raised again. */
static void on_crash(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    const bool sent = info->si_code <= 0;
    int none = 0;
    if (atomic_compare_exchange_strong(&crash_recorder->crashed, &none, team_rank() + 1))
        atomic_store(&crash_recorder->sent_by, sent && info->si_pid != getpid() ? info->si_pid : 0);
    for (int i = 0; i < N_DEADLY; i++)
        if (deadly[i] == signal_number) sigaction(signal_number, &before_crash[i], NULL);
    if (sent) raise(signal_number);
}

static void watch_for_crashes(FlightRecorder *b)
{
    const struct sigaction act = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    crash_recorder = b;
    for (int i = 0; i < N_DEADLY; i++) sigaction(deadly[i], &act, &before_crash[i]);
}

/* ---- the parent ---- */

/* Blocks the signals before the fork. The parent then reads them one by one from a signalfd and
 * needs no handler; none can be lost between fork and wait. */
static void hold_signals(sigset_t *held, sigset_t *before)
{
    sigemptyset(held);
    sigaddset(held, SIGCHLD);
    for (int i = 0; i < N_PASSED_ON; i++) sigaddset(held, passed_on[i]);
    sigprocmask(SIG_BLOCK, held, before);
}

/* False for signals that the caller made this process ignore (nohup). SIGINT is never ignored:
 * shells ignore it for every background job, but a SIGINT sent to the run must still stop it. */
static bool is_wanted(int signal_number)
{
    struct sigaction now;
    sigaction(signal_number, NULL, &now);
    return now.sa_handler != SIG_IGN || signal_number == SIGINT;
}

static const char *signal_name(int signal_number, char buffer[24])
{
    static const struct {
        int number;
        const char *name;
    } row[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"},
               {SIGILL, "SIGILL"},   {SIGFPE, "SIGFPE"},
               {SIGABRT, "SIGABRT"}, {SIGKILL, "SIGKILL"},
               {SIGINT, "SIGINT"},   {SIGTERM, "SIGTERM"},
               {SIGHUP, "SIGHUP"},   {SIGQUIT, "SIGQUIT"},
               {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"},
               {SIGXCPU, "SIGXCPU"}, {0, NULL}};
    snprintf(buffer, 24, "signal %d", signal_number);
    for (int i = 0; row[i].name; i++)
        if (row[i].number == signal_number) snprintf(buffer, 24, "%s", row[i].name);
    return buffer;
}

/* The rank of a worker that is one rank of a launcher; -1: its ranks are threads. */
static int launched_rank(const FlightRecorder *b, int *ranks)
{
    MpiLaunch by;
    *ranks = b->ranks;
    if (b->n_here > 0) return b->n_here == 1 && b->ranks > 1 ? b->status[0].rank : -1;
    if (!mpi_launched(getenv, &by) || by.ranks == 1) return -1;
    *ranks = by.ranks;
    return by.rank;
}

/* "rank 2 of 4 (node7, pid 4711) was killed by SIGKILL in step 160". False if the worker is not one
 * rank of a launcher. */
static bool killed_text(const FlightRecorder *b, const char *signal_name, pid_t pid, Text *t)
{
    char where[WATCH_TEXT_BYTES] = "before its first step", host[256] = "";
    int ranks;
    const int rank = launched_rank(b, &ranks);
    if (rank < 0) return false;
    gethostname(host, sizeof host - 1);
    if (b->n_here > 0) watch_text(&b->status[0].watch, where);
    const bool in_step = strncmp(where, "step ", 5) == 0;
    text_add(t, "rank %d of %d (%s, pid %d) was killed by %s %s%s", rank, ranks, host, (int)pid,
             signal_name, in_step ? "in " : "", where);
    return true;
}

/* "rank 2 of 4 died of SIGSEGV in step 3, layer.3, F of micro-batch 1, instruction 17 linear" */
static void crash_text(const FlightRecorder *b, int signal_number, pid_t pid, Text *t)
{
    char name[24], where[WATCH_TEXT_BYTES];
    const int rank = atomic_load(&b->crashed) - 1, by = atomic_load(&b->sent_by);
    const RankStatus *s = rank >= 0 ? flight_recorder_of(b, rank) : NULL;
    signal_name(signal_number, name);
    if (s && !by) {
        text_add(t, "rank %d of %d died of %s in %s", rank, b->ranks, name,
                 watch_text(&s->watch, where));
    } else {
        if (!killed_text(b, name, pid, t))
            text_add(t, "the worker died of %s%s", name, b->ranks ? "" : ", before its ranks ran");
        if (by) text_add(t, ", which process %d sent", by);
    }
    if (signal_number == SIGKILL)
        text_add(t, "; if you did not send it, the machine was out of memory: see `dmesg`");
}

const char *worker_dump(const FlightRecorder *b, const char *reason, char path[1200])
{
    if (!b->dir[0] || b->n_here == 0) return NULL;
    if (b->n_here == b->ranks)
        snprintf(path, 1200, "%s/recorder.json", b->dir);
    else
        snprintf(path, 1200, "%s/recorder.%d.json", b->dir, b->status[0].rank);
    return flight_recorder_write(b, path, reason) == OK ? path : NULL;
}

static void report_crash(FlightRecorder *b, int signal_number, pid_t pid)
{
    Arena arena;
    const char *end = "", *words;
    char path[1200];
    if (arena_open(&arena, "crash", (size_t)1 << 26) != OK) return;
    Text t = text_in(&arena);
    crash_text(b, signal_number, pid, &t);
    if (text_done(&t, &end) == OK) fprintf(stderr, "sheaf: %s\n", end);
    snprintf(b->why, sizeof b->why, "%s", end);
    t = text_in(&arena);
    if (b->n_here <= MAX_REPORTED) flight_recorder_report(b, LATEST, &t);
    if (text_done(&t, &words) == OK) fputs(words, stderr);
    if (worker_dump(b, end, path)) fprintf(stderr, "  `sheaf inspect %s` shows more\n", path);
    arena_close(&arena);
}

bool worker_is_stop(int signal_number)
{
    for (int i = 0; i < N_PASSED_ON; i++)
        if (passed_on[i] == signal_number) return true;
    return false;
}

static void report_status(FlightRecorder *b, int status, pid_t pid, WorkerEnd *end)
{
    if (WIFEXITED(status)) {
        end->status = WEXITSTATUS(status);
        return;
    }
    if (WTERMSIG(status) != SIGINT) report_crash(b, WTERMSIG(status), pid);
    end->by_user |= worker_is_stop(WTERMSIG(status));
    end->status = 128 + WTERMSIG(status);
}

/* Waits for a signal, for output or for LOOK_MS, and passes the output on. Returns the signal; 0:
 * none. */
static int wait_for_signal(int signals, Relay *relay, struct signalfd_siginfo *info)
{
    struct pollfd fds[1 + N_RELAY_FDS] = {{signals, POLLIN, 0}};
    const int n = 1 + (relay ? relay_fds(relay, fds + 1) : 0);
    poll(fds, (nfds_t)n, LOOK_MS);
    if (relay) relay_move(relay);
    return read(signals, info, sizeof *info) == sizeof *info ? (int)info->ssi_signo : 0;
}

/* Prints why the worker is stuck, and kills it. */
static void end_stuck(const Watchdog *dog, FlightRecorder *b, const char *why, WorkerEnd *end)
{
    char path[1200];
    fprintf(stderr, "sheaf: %s; the run ends\n", why);
    snprintf(b->why, sizeof b->why, "%.500s", why);
    if (worker_dump(b, why, path)) fprintf(stderr, "  `sheaf inspect %s` shows more\n", path);
    end->stuck = true;
    roll_call_end_stopped(&dog->roll);
    kill(dog->worker, SIGKILL);
}

static void look(Watchdog *dog, FlightRecorder *b, WorkerEnd *end)
{
    const char *words;
    const size_t mark = arena_mark(dog->temp);
    Text why = text_in(dog->temp);
    if (!end->stuck && watchdog_look(dog, now_s(), &why) && text_done(&why, &words) == OK)
        end_stuck(dog, b, words, end);
    arena_rewind(dog->temp, mark);
}

/* SIGCHLD is among the held signals, so the wait also ends when the worker does. */
static Err wait_for_end(Watchdog *dog, FlightRecorder *b, int signals, Relay *relay, int *status,
                        WorkerEnd *end)
{
    const pid_t pid = dog->worker;
    for (;;) {
        struct signalfd_siginfo info;
        const pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended < 0) return err_fail(ERR_IO, "the worker: %s", strerror(errno));
        if (relay && ended == pid) relay_move(relay); /* before the parent reports the end */
        if (ended == pid) return OK;
        look(dog, b, end);
        const int got = wait_for_signal(signals, relay, &info);
        if (got == 0 || got == SIGCHLD || !is_wanted(got)) continue;
        end->by_user = true;
        if (dog->told_s == 0) dog->told_s = now_s();
        if (info.ssi_code != SI_KERNEL) kill(pid, got); /* a terminal has sent it to both */
    }
}

static int in_worker(int (*work)(int, char **, FlightRecorder *), int argc, char **argv,
                     FlightRecorder *b)
{
    watch_for_crashes(b);
    return worker_flush(work(argc, argv, b));
}

static void await_worker(Watchdog *dog, int signals, Relay *relay, FlightRecorder *b,
                         WorkerEnd *end)
{
    int status;
    const Err err = wait_for_end(dog, b, signals, relay, &status, end);
    if (err != OK)
        end->status = cli_fail(err);
    else if (end->stuck)
        end->status = 1; /* the reason is printed */
    else
        report_status(b, status, dog->worker, end);
}

int worker_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc, char **argv,
               Relay *relay, WorkerEnd *out)
{
    FlightRecorder *b; /* new for each worker: holds nothing of one that died before */
    sigset_t held, before;
    WorkerEnd end = {0};
    Watchdog dog;
    Arena temp;
    const pid_t parent = getpid();
    Err err = flight_recorder_open(&b);
    if (err == OK) err = arena_open(&temp, "watchdog", (size_t)1 << 24);
    if (err != OK) return cli_fail(err);
    watchdog_open(&dog, b, argc, argv, getenv, &temp);
    fflush(NULL);
    hold_signals(&held, &before);
    signal(SIGCHLD, SIG_DFL); /* if ignored, waitpid could not return the worker's status */
    const int signals = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
    const pid_t pid = signals < 0 ? -1 : fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1); /* the parent died before prctl took effect */
        exit(in_worker(work, argc, argv, b));
    }
    dog.worker = pid;
    if (pid < 0)
        end.status = cli_fail(err_fail(ERR_NOMEM, "no worker: %s", strerror(errno)));
    else
        await_worker(&dog, signals, relay, b, &end);
    watchdog_close(&dog);
    snprintf(end.dir, sizeof end.dir, "%s", b->dir);
    snprintf(end.why, sizeof end.why, "%s", b->why);
    if (out) *out = end;
    if (signals >= 0) close(signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    arena_close(&temp);
    flight_recorder_close(b);
    return end.status;
}
