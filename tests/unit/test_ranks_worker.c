/* test_ranks_worker.c -- a verb in its worker process: exit statuses, the report of a crash with
 * its rank and instruction, and the files that the parent leaves in the run folder. Faults are
 * planted in the worker's work. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/team.h"
#include "cli/worker.h"
#include "ir/ops.h"
#include "schedule/action.h"
#include "world/world.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* the sanitizer's handlers end the process with their own report and status */
#else
#define SANITIZED 0
#endif

static char output[1 << 16];

static int run_worker(int (*work)(int, char **, FlightRecorder *))
{
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    char *argv[] = {"test", NULL};
    FILE *file = tmpfile();
    for (int i = 0; i < 4; i++) signal(deadly[i], SIG_DFL); /* cmocka installs its own handlers */
    const int kept = dup(STDERR_FILENO);
    assert_true(file && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const int status = worker_run(work, 1, argv, NULL, NULL);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    return status;
}

static void assert_printed(const char *part)
{
    if (!strstr(output, part)) fail_msg("\"%s\" is not in: %s", part, output);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- work of the workers ---- */

static int end_with_7(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    return 7;
}

static int die_before_ranks(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    raise(SIGILL);
    return 0;
}

static int killed(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    kill(getpid(), SIGKILL);
    return 0;
}

static int interrupted(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    kill(getpid(), SIGINT);
    return 0;
}

static void be_at(RankStatus *s, int instr)
{
    s->watch.step = 5;
    s->watch.action = A_RUN;
    s->watch.phase = PHASE_F;
    s->watch.micro = 1;
    s->watch.instr = instr;
    s->watch.op = OP_linear;
    for (int i = 0; i < 8; i++) s->watch.unit[i] = "layer.3"[i];
}

static int *volatile nothing; /* opaque to the compiler */

static void touch_nothing(void) { *nothing = 1; }

static Err sum(WorldRank *w)
{
    double *x;
    TRY(ARENA_NEW(w->arena, 1, &x));
    TRY(comm_register(w->comm, 0, x, sizeof *x));
    const Ref at = {w->rank, 0, 0, 1, F64};
    const Transfer t = {
        .kind = COMM_ALL_REDUCE, .group = w->all, .from = at, .to = at, .instr = 40};
    return comm_do(w->comm, &t);
}

/* Rank 2 writes to an unmapped address; the others wait in a sum that it never joins. */
static Err crash_of_rank_2(WorldRank *w, void *work)
{
    (void)work;
    TRY(sum(w));
    be_at(w->status, 10 + w->rank);
    if (w->rank != 2) return sum(w);
    sleep_ms(50);
    touch_nothing();
    return OK;
}

/* The same by another thread of the rank's team. */
static void slow_touch(void *work, int64_t tile)
{
    if (tile == 0) sleep_ms(20);
    const pthread_t *owner = work;
    if (!pthread_equal(pthread_self(), *owner)) touch_nothing();
    sleep_ms(200);
}

static Err crash_of_a_team(WorldRank *w, void *work)
{
    (void)work;
    Team *team;
    pthread_t me = pthread_self();
    be_at(w->status, 10 + w->rank);
    if (w->rank != 1) return sum(w);
    TRY(team_open(&team, 2, NULL));
    team_run(team, 2, slow_touch, &me);
    team_close(team);
    return OK;
}

static Err deep(WorldRank *w, volatile char *above)
{
    volatile char here[1 << 16];
    here[0] = above ? above[0] : 0;
    if (w->ranks > 0) TRY(deep(w, here)); /* always */
    return here[1] ? ERR_CHECK : OK;
}

static Err crash_by_stack(WorldRank *w, void *work)
{
    (void)work;
    be_at(w->status, 10 + w->rank);
    return w->rank == 1 ? deep(w, NULL) : sum(w);
}

static char dir[] = "/tmp/test_ranks_worker_XXXXXX";

static int run_4(FlightRecorder *b, Err (*body)(WorldRank *, void *))
{
    const WorldSettings set = {.ranks = 4,
                               .in_flight = 8,
                               .records = 64,
                               .timeout_s = 20,
                               .flight_recorder = b,
                               .body = body};
    strcpy(b->dir, dir);
    return world_run(&set) == OK ? 0 : 1;
}

static int crash_rank(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv;
    return run_4(b, crash_of_rank_2);
}

static int crash_team(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv;
    return run_4(b, crash_of_a_team);
}

static int crash_stack(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv;
    return run_4(b, crash_by_stack);
}

/* ---- the parent's report ---- */

static void statuses_are_those_of_the_worker(void **state)
{
    (void)state;
    assert_int_equal(run_worker(end_with_7), 7);
    assert_string_equal(output, "");
    assert_int_equal(run_worker(interrupted), 130);
    assert_string_equal(output, "");
    assert_int_equal(run_worker(killed), 128 + SIGKILL);
    assert_printed("the worker died of SIGKILL, before its ranks ran; if you did not send it");
    if (SANITIZED) return;
    assert_int_equal(run_worker(die_before_ranks), 128 + SIGILL);
    assert_printed("the worker died of SIGILL, before its ranks ran\n");
}

/* The third of four processes of a launcher, in step 160. */
static int killed_in_a_step(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv;
    if (flight_recorder_rank(b, 4, 2, 1, 64) != OK) return 1;
    atomic_store(&b->status[0].watch.action, -1);
    atomic_store(&b->status[0].watch.step, 160);
    return raise(SIGKILL);
}

static void a_killed_process_names_its_rank(void **state)
{
    char host[256] = "", words[512];
    (void)state;
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "sheaf: rank 2 of 4 (%s, pid ", host);
    assert_int_equal(run_worker(killed_in_a_step), 128 + SIGKILL);
    assert_printed(words);
    assert_printed(") was killed by SIGKILL in step 160; if you did not send it");
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_RANK", "2", 1);
    assert_int_equal(run_worker(killed), 128 + SIGKILL);
    assert_printed(words);
    assert_printed(") was killed by SIGKILL before its first step; if you did not send it");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

static void a_crash_names_rank_and_instruction(void **state)
{
    (void)state;
    Arena arena;
    FlightRecorder recorder;
    const char *reason;
    char path[1200];
    if (SANITIZED) return;
    assert_int_equal(run_worker(crash_rank), 128 + SIGSEGV);
    assert_printed("sheaf: rank 2 of 4 died of SIGSEGV in step 5, layer.3, F of micro-batch 1, "
                   "instruction 12 linear\n");
    assert_printed(
        "  rank 0: step 5, layer.3, F of micro-batch 1, instruction 10 linear; waits for "
        "all-reduce #1 over {0 1 2 3}, instruction 40: rank 2 has not posted it\n");
    assert_printed("    all-reduce #0 over {0 1 2 3}, instruction 40: 8 B, posted at ");
    snprintf(path, sizeof path, "%s/recorder.json", dir);
    assert_printed(path);
    assert_int_equal(arena_open(&arena, "dump", 1 << 24), OK);
    if (flight_recorder_read(path, &arena, &recorder, &reason) != OK) fail_msg("%s", err_text());
    assert_int_equal(recorder.ranks, 4);
    assert_int_equal(recorder.n_here, 4);
    assert_non_null(strstr(reason, "rank 2 of 4 died of SIGSEGV"));
    assert_int_equal(recorder.status[2].recorder.waits, -1);
    assert_int_equal(recorder.status[2].recorder.total, 1);
    assert_int_equal(recorder.status[3].recorder.total, 2);
    assert_int_equal(recorder.status[3].recorder.waits, 1);
    arena_close(&arena);
}

static void team_threads_report_their_rank(void **state)
{
    (void)state;
    if (SANITIZED) return;
    assert_int_equal(run_worker(crash_team), 128 + SIGSEGV);
    assert_printed("sheaf: rank 1 of 4 died of SIGSEGV in step 5");
}

static void stack_overflow_is_reported(void **state)
{
    (void)state;
    if (SANITIZED) return;
    assert_int_equal(run_worker(crash_stack), 128 + SIGSEGV);
    assert_printed("sheaf: rank 1 of 4 died of SIGSEGV in step 5");
}

/* ---- the worker dies with its parent ---- */

static int print_pid_and_sleep(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)b;
    const pid_t me = getpid();
    const int fd = atoi(argv[0]);
    if (write(fd, &me, sizeof me) != sizeof me) return 1;
    sleep_ms(60000);
    return 0;
}

static bool is_gone(pid_t pid)
{
    for (int i = 0; i < 500; i++) {
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *f = fopen(path, "r");
        const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f) fclose(f);
        const char *end = n ? strrchr(text, ')') : NULL;
        if (!f || !end || end[2] == 'Z') return true; /* no parent may be left to reap it */
        sleep_ms(10);
    }
    return false;
}

static void the_worker_dies_with_its_parent(void **state)
{
    (void)state;
    int pipes[2], status;
    pid_t worker = 0;
    char fd[16], *argv[] = {fd, NULL};
    assert_int_equal(pipe(pipes), 0);
    snprintf(fd, sizeof fd, "%d", pipes[1]);
    const pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) _exit(worker_run(print_pid_and_sleep, 1, argv, NULL, NULL));
    assert_int_equal(read(pipes[0], &worker, sizeof worker), sizeof worker);
    kill(parent, SIGKILL);
    waitpid(parent, &status, 0);
    assert_true(is_gone(worker));
    close(pipes[0]);
    close(pipes[1]);
}

static void signals_are_passed_on(void **state)
{
    (void)state;
    int pipes[2], status;
    pid_t worker = 0;
    char fd[16], *argv[] = {fd, NULL};
    assert_int_equal(pipe(pipes), 0);
    snprintf(fd, sizeof fd, "%d", pipes[1]);
    const pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        close(STDERR_FILENO);
        _exit(worker_run(print_pid_and_sleep, 1, argv, NULL, NULL));
    }
    assert_int_equal(read(pipes[0], &worker, sizeof worker), sizeof worker);
    kill(parent, SIGTERM);
    waitpid(parent, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
    assert_true(is_gone(worker));
    close(pipes[0]);
    close(pipes[1]);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char path[1200];
    (void)state;
    snprintf(path, sizeof path, "%s/recorder.json", dir);
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_are_those_of_the_worker),
        cmocka_unit_test(a_killed_process_names_its_rank),
        cmocka_unit_test(a_crash_names_rank_and_instruction),
        cmocka_unit_test(team_threads_report_their_rank),
        cmocka_unit_test(stack_overflow_is_reported),
        cmocka_unit_test(the_worker_dies_with_its_parent),
        cmocka_unit_test(signals_are_passed_on),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
