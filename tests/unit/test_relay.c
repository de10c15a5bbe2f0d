/* test_relay.c -- output of a worker that nobody reads, reads late, or stops reading: the worker
 * ends all the same, and the files of the caller keep their flags. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "cli/worker.h"

/* Lines are more than the pipes and the memory of the relay hold, so some must be dropped. */
enum { LINES = 80000, MAX_TEXT = 1 << 21 };

static char text[MAX_TEXT];
static int done[2]; /* pipe: a worker has printed all its lines */

static void sleep_s(double s)
{
    const time_t whole = (time_t)s;
    nanosleep(&(struct timespec){whole, (long)(1e9 * (s - (double)whole))}, NULL);
}

/* ---- workers ---- */

static int print_lines(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    for (int i = 1; i <= LINES; i++) printf("line %d of %d\n", i, LINES);
    return write(done[1], "d", 1) == 1 ? 7 : 8;
}

static int alternate(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    for (int i = 0; i < 50; i++) fprintf(i % 2 ? stderr : stdout, "%d\n", i);
    return 0;
}

/* Lines that replace each other, as on a terminal, then one that stays. */
static int show_progress(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    for (int i = 1; i <= LINES; i++) {
        printf("\r\033[Kstep %d of %d", i, LINES);
        fflush(stdout);
    }
    printf("\nthe end\n");
    return write(done[1], "d", 1) == 1 ? 0 : 8;
}

static int sleep_a_second(int argc, char **argv, FlightRecorder *b)
{
    (void)argc, (void)argv, (void)b;
    printf("sleeps\n");
    sleep_s(1);
    return 0;
}

/* ---- the process under test ---- */

typedef int Work(int argc, char **argv, FlightRecorder *recorder);

static Relay relay; /* large */

/* Starts a process with standard output `out` and standard error `err` that runs the worker. */
static pid_t start(Work *work, int out, int err)
{
    char *argv[] = {"test", NULL};
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    signal(SIGPIPE, SIG_DFL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    for (int fd = 3; fd < 64; fd++)
        if (fd != done[1]) close(fd);
    if (relay_open(&relay) != OK) _exit(99);
    _exit(relay_close(&relay, worker_run(work, 1, argv, &relay, NULL)));
}

static int end_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void await_lines(void)
{
    char byte;
    assert_int_equal(read(done[0], &byte, 1), 1);
}

/* Reads until the last process that could write has ended. */
static size_t read_all(int fd)
{
    size_t n = 0;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 60000) != 1) break;
        const ssize_t got = read(fd, text + n, MAX_TEXT - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return n;
}

static int count(const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

/* ---- tests ---- */

static void lines_of_one_file_stay_in_order(void **state)
{
    (void)state;
    int ends[2];
    const char *at = text;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = start(alternate, ends[1], ends[1]);
    close(ends[1]);
    read_all(ends[0]);
    assert_int_equal(end_of(pid), 0);
    for (long i = 0; i < 50; i++) assert_int_equal(strtol(at, (char **)&at, 10), i);
    close(ends[0]);
}

/* Everything that is not dropped arrives; the last line is never dropped. */
static void a_late_reader_gets_the_last_lines(void **state)
{
    (void)state;
    int ends[2];
    long dropped = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = start(print_lines, ends[1], STDERR_FILENO);
    close(ends[1]);
    await_lines();
    read_all(ends[0]);
    assert_int_equal(end_of(pid), 7);
    assert_non_null(strstr(text, "line 1 of 80000\n"));
    assert_non_null(strstr(text, "line 80000 of 80000\n"));
    for (const char *at = text; (at = strstr(at, "\n(")); at++) dropped += strtol(at + 2, NULL, 10);
    assert_true(dropped > 0);
    assert_int_equal(count("line ") + dropped, LINES);
    close(ends[0]);
}

static void nobody_has_to_read(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const double before = now_s();
    const pid_t pid = start(print_lines, ends[1], STDERR_FILENO);
    await_lines();
    assert_int_equal(end_of(pid), 7);
    assert_true(now_s() - before < 4 * RELAY_WAIT_S);
    close(ends[0]);
    close(ends[1]);
}

static void a_reader_may_go(void **state)
{
    (void)state;
    int out[2], err[2];
    assert_true(pipe(out) == 0 && pipe(err) == 0);
    close(out[0]);
    const pid_t pid = start(print_lines, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    await_lines();
    assert_int_equal(end_of(pid), 7);
    read_all(err[0]);
    assert_int_equal(count("nobody reads standard output any more"), 1);
    close(err[0]);
}

static void a_full_disk_is_a_failure(void **state)
{
    (void)state;
    int err[2];
    const int full = open("/dev/full", O_WRONLY);
    assert_true(full >= 0 && pipe(err) == 0);
    const pid_t pid = start(sleep_a_second, full, err[1]);
    close(err[1]);
    assert_int_equal(end_of(pid), 1);
    read_all(err[0]);
    assert_int_equal(count("standard output cannot be written: No space left"), 1);
    close(full);
    close(err[0]);
}

static void files_keep_their_flags(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = start(sleep_a_second, ends[1], ends[1]);
    struct pollfd p = {ends[0], POLLIN, 0};
    assert_int_equal(poll(&p, 1, 5000), 1); /* the relay has written: it is open */
    assert_int_equal(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(end_of(pid), 0);
    close(ends[0]);
    close(ends[1]);
}

/* Ctrl-S holds a terminal. After Ctrl-Q it shows the newest line, not all those before it. */
static void a_held_terminal_gets_the_newest_line(void **state)
{
    (void)state;
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    const int tty = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(tty >= 0);
    assert_int_equal(write(master, "\023", 1), 1); /* Ctrl-S */
    const pid_t pid = start(show_progress, tty, tty);
    close(tty);
    await_lines();
    assert_int_equal(write(master, "\021", 1), 1); /* Ctrl-Q */
    read_all(master);
    assert_int_equal(end_of(pid), 0);
    assert_true(count("step ") < 100);
    assert_non_null(strstr(text, "step 80000 of 80000\r\nthe end"));
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_one_file_stay_in_order),
        cmocka_unit_test(a_late_reader_gets_the_last_lines),
        cmocka_unit_test(nobody_has_to_read),
        cmocka_unit_test(a_reader_may_go),
        cmocka_unit_test(a_full_disk_is_a_failure),
        cmocka_unit_test(files_keep_their_flags),
        cmocka_unit_test(a_held_terminal_gets_the_newest_line),
    };
    if (pipe(done) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
