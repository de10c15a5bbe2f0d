/* relay.h -- the output of a run, passed on by its parent process, so that nobody who reads it, or
 * does not, can hold up training.
 *
 *     worker, parent -- printf --> fd 1, a pipe -- relay_move --> the caller's standard output
 *
 * The parent always reads the pipe; the worker never waits. Text that the caller does not take
 * (Ctrl-S, a pipe that nobody reads) waits in the parent. If it grows too long, its oldest lines
 * are dropped, and a line tells how many. A line that a terminal would overwrite is replaced by the
 * newer one. If the reader has gone (EPIPE, a terminal that hung up), there is no more output, and
 * training continues. The caller's files keep their flags: O_NONBLOCK would reach the shell too. */
#ifndef CLI_RELAY_H
#define CLI_RELAY_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

enum { MAX_PENDING = 1 << 18, N_STREAMS = 2, N_RELAY_FDS = 2 * N_STREAMS };

/* How text can be written without waiting. */
typedef enum {
    WRITE_PLAIN,  /* a regular file, which never blocks */
    WRITE_OWN,    /* opened again, so that O_NONBLOCK is this process's own */
    WRITE_SOCKET, /* with MSG_DONTWAIT */
    WRITE_POLLED  /* a little at a time, while poll() reports room */
} WriteHow;

typedef struct {
    int fd;   /* 1 or 2 */
    int from; /* read end of the pipe; -1: this stream shares the other one's */
    int kept; /* the caller's file; restored by relay_close */
    int to;   /* written to: `kept`, or the same file opened again */
    WriteHow how;
    bool terminal;
    bool gone;    /* nobody reads any more, or writing failed */
    int error;    /* errno of a write that failed, other than a reader that has gone */
    bool midline; /* the last byte written was not a line break */
    long dropped; /* lines, since the last report */
    size_t n;     /* bytes pending */
    char pending[MAX_PENDING];
} RelayStream;

typedef struct {
    RelayStream of[N_STREAMS];
    void (*on_pipe)(int); /* the caller's reaction to SIGPIPE */
} Relay;

/* Local, before any thread. Replaces fd 1 and 2 of this process and of its children by pipes to
 * `r`, and ignores SIGPIPE. */
Err relay_open(Relay *r);
/* Local. True if standard output is a terminal, or was one before relay_open. */
bool relay_is_terminal(void);
/* Local. Fills the descriptors to wait for; returns their number, up to N_RELAY_FDS. */
int relay_fds(const Relay *r, struct pollfd *out);
/* Local. Reads everything that was printed, and writes what can be written without waiting. */
void relay_move(Relay *r);
/* Local. Moves the rest, and waits for the reader, but at most RELAY_WAIT_S in all. */
#define RELAY_WAIT_S 5.0
void relay_finish(Relay *r);
/* Local. Calls relay_finish and restores fd 1, fd 2 and SIGPIPE. Returns `status`, or 1 if it is 0
 * and standard output could not be written. A reader that has gone is no failure. */
int relay_close(Relay *r, int status);

#endif
