/* relay.c -- two pipes that this process reads itself, and the text that waits for a reader. */
#define _GNU_SOURCE
#include "cli/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"

enum { PIPE_BYTES = 1 << 20, READ_BYTES = 1 << 14, POLLED_BYTES = 512 };

/* Begins a line that replaces the line before it (train/metrics.c). */
static const char replaces[] = "\r\033[K";
enum { REPLACES = sizeof replaces - 1 };

/* Global, because file descriptors are: one relay replaces those of the whole process. */
static const Relay *opened;

bool relay_is_terminal(void)
{
    return opened ? opened->of[0].terminal : isatty(STDOUT_FILENO) == 1;
}

/* ---- pending text ---- */

static void drop(RelayStream *s, size_t at, size_t bytes)
{
    memmove(s->pending + at, s->pending + at + bytes, s->n - at - bytes);
    s->n -= bytes;
}

/* Where the first whole line begins, after the rest of a line that is partly written. */
static size_t first_line(const RelayStream *s)
{
    const char *end = s->midline ? memchr(s->pending, '\n', s->n) : NULL;
    return end ? (size_t)(end - s->pending) + 1 : 0;
}

/* Drops old lines until half of the memory is free. The rest of a line that is partly written
 * stays. A single line that is longer than the memory is dropped as a whole. */
static void drop_lines(RelayStream *s)
{
    const size_t first = first_line(s);
    size_t to = first;
    while (to < s->n && s->n - (to - first) > MAX_PENDING / 2) {
        const char *end = memchr(s->pending + to, '\n', s->n - to);
        to = end ? (size_t)(end - s->pending) + 1 : s->n;
        s->dropped++;
    }
    drop(s, first, to - first);
    if (s->n > MAX_PENDING / 2) s->n = 0;
}

/* Removes the unfinished line at the end: the text that follows replaces it. */
static void drop_replaced(RelayStream *s)
{
    const char *end = memrchr(s->pending, '\n', s->n);
    s->n = end ? (size_t)(end - s->pending) + 1 : 0;
}

static void append(RelayStream *s, const char *text, size_t bytes)
{
    while (bytes > 0 && !s->gone) {
        const char *next = bytes > 1 ? memmem(text + 1, bytes - 1, replaces, REPLACES) : NULL;
        size_t part = next ? (size_t)(next - text) : bytes;
        if (part > MAX_PENDING / 2) part = MAX_PENDING / 2;
        if (s->terminal && part >= REPLACES && memcmp(text, replaces, REPLACES) == 0)
            drop_replaced(s);
        if (s->n + part > MAX_PENDING) drop_lines(s);
        memcpy(s->pending + s->n, text, part);
        s->n += part;
        text += part;
        bytes -= part;
    }
}

/* Puts the number of dropped lines at `at`, where they were dropped. Returns the bytes of the note.
 */
static size_t note_dropped(RelayStream *s, size_t at)
{
    char note[80];
    const int n = snprintf(note, sizeof note, "(%ld line%s not printed: nobody read the output)\n",
                           s->dropped, s->dropped == 1 ? " was" : "s were");
    if (s->dropped == 0 || (s->midline && at == 0) || s->n + (size_t)n > MAX_PENDING) return 0;
    memmove(s->pending + at + n, s->pending + at, s->n - at);
    memcpy(s->pending + at, note, (size_t)n);
    s->n += (size_t)n;
    s->dropped = 0;
    return (size_t)n;
}

/* ---- reading and writing ---- */

static ssize_t write_some(const RelayStream *s)
{
    struct pollfd room = {s->to, POLLOUT, 0};
    if (s->how == WRITE_SOCKET) return send(s->to, s->pending, s->n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (s->how != WRITE_POLLED) return write(s->to, s->pending, s->n);
    if (poll(&room, 1, 0) != 1) return errno = EAGAIN, -1;
    return write(s->to, s->pending, s->n < POLLED_BYTES ? s->n : POLLED_BYTES);
}

/* Reports on `r`'s other stream that the reader of this one has gone, or keeps the error. */
static void end_stream(Relay *r, RelayStream *s, int why)
{
    static const char note[] =
        "sheaf: nobody reads standard output any more: nothing more is printed, training "
        "continues\n";
    s->gone = true;
    s->n = 0;
    if (why != EPIPE && !(why == EIO && s->terminal)) s->error = why;
    if (s == &r->of[0] && !s->error && r->of[1].from >= 0) append(&r->of[1], note, sizeof note - 1);
}

static void write_pending(Relay *r, RelayStream *s)
{
    while (s->n > 0 && !s->gone) {
        const long dropped = s->dropped;
        const size_t at = first_line(s), note = note_dropped(s, at);
        const ssize_t done = write_some(s);
        if (note > 0 && done <= (ssize_t)at) { /* not begun: more lines may be dropped there */
            drop(s, at, note);
            s->dropped = dropped;
        }
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno != EAGAIN && errno != EWOULDBLOCK) end_stream(r, s, errno);
        if (done <= 0) return;
        s->midline = s->pending[done - 1] != '\n';
        drop(s, 0, (size_t)done);
    }
}

/* Reads at most a full pipe: a signal must not wait for a worker that keeps printing.
 * Writes in between: lines are dropped only if the reader takes none. */
static void read_printed(Relay *r, RelayStream *s)
{
    char text[READ_BYTES];
    for (int i = 0; i < PIPE_BYTES / READ_BYTES && s->from >= 0; i++) {
        const ssize_t n = read(s->from, text, sizeof text);
        if (n <= 0) return;
        append(s, text, (size_t)n);
        if (s->n > MAX_PENDING / 2) write_pending(r, s);
    }
}

void relay_move(Relay *r)
{
    for (int i = 0; i < N_STREAMS; i++) read_printed(r, &r->of[i]);
    for (int i = 0; i < N_STREAMS; i++) write_pending(r, &r->of[i]);
}

int relay_fds(const Relay *r, struct pollfd *out)
{
    int n = 0;
    for (int i = 0; i < N_STREAMS; i++) {
        const RelayStream *s = &r->of[i];
        if (s->from >= 0) out[n++] = (struct pollfd){s->from, POLLIN, 0};
        if (s->n > 0 && !s->gone) out[n++] = (struct pollfd){s->to, POLLOUT, 0};
    }
    return n;
}

void relay_finish(Relay *r)
{
    const double end = now_s() + RELAY_WAIT_S;
    fflush(NULL);
    relay_move(r);
    while ((r->of[0].n > 0 || r->of[1].n > 0) && now_s() < end) {
        struct pollfd fds[N_RELAY_FDS];
        const int n = relay_fds(r, fds);
        poll(fds, (nfds_t)n, 1 + (int)(1e3 * (end - now_s())));
        relay_move(r);
    }
}

/* ---- opening and closing ---- */

/* Opens the caller's pipe or terminal again: flags belong to the opened file, and the caller shares
 * his. A regular file must not be opened again: it has a position. */
static void choose_write(RelayStream *s)
{
    char path[40];
    struct stat st;
    s->to = s->kept;
    s->how = WRITE_PLAIN;
    if (fstat(s->kept, &st) != 0 || S_ISREG(st.st_mode)) return;
    s->how = S_ISSOCK(st.st_mode) ? WRITE_SOCKET : WRITE_POLLED;
    if (!S_ISFIFO(st.st_mode) && !s->terminal) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->kept);
    const int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own < 0) return;
    s->to = own;
    s->how = WRITE_OWN;
}

static bool is_same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static Err open_stream(RelayStream *s, int fd)
{
    int ends[2];
    s->fd = fd;
    s->terminal = isatty(fd) == 1;
    s->kept = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (s->kept < 0 || pipe2(ends, O_CLOEXEC) != 0)
        return err_fail(ERR_IO, "standard output: cannot be relayed: %s", strerror(errno));
    choose_write(s);
    s->from = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES); /* a smaller pipe is good enough */
    dup2(ends[1], fd);
    close(ends[1]);
    return OK;
}

/* Both streams share one pipe if they are one file, so that their lines stay in order. */
Err relay_open(Relay *r)
{
    RelayStream *out = &r->of[0], *err = &r->of[1];
    memset(r, 0, sizeof *r);
    *err = (RelayStream){.fd = STDERR_FILENO, .from = -1, .kept = -1, .to = -1};
    fflush(NULL);
    const bool one = is_same_file(STDOUT_FILENO, STDERR_FILENO);
    TRY(open_stream(out, STDOUT_FILENO));
    if (one) {
        err->kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        dup2(STDOUT_FILENO, STDERR_FILENO);
    } else {
        TRY(open_stream(err, STDERR_FILENO));
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* a pipe would keep the first lines until 4 KiB are full */
    r->on_pipe = signal(SIGPIPE, SIG_IGN);
    opened = r;
    return OK;
}

static void close_stream(RelayStream *s)
{
    if (s->kept >= 0) dup2(s->kept, s->fd);
    if (s->kept >= 0 && s->kept != s->to) close(s->kept);
    if (s->to >= 0) close(s->to);
    if (s->from >= 0) close(s->from);
}

int relay_close(Relay *r, int status)
{
    relay_finish(r);
    const int error = r->of[0].error;
    for (int i = 0; i < N_STREAMS; i++) close_stream(&r->of[i]);
    clearerr(stdout);
    signal(SIGPIPE, r->on_pipe);
    opened = NULL;
    if (!error) return status;
    fprintf(stderr, "sheaf: standard output cannot be written: %s\n", strerror(error));
    return status ? status : 1;
}
