/* ends.c -- a world in which rank 1 ends badly while the others wait for it; for ends.sh.
 *
 *     ends exit     rank 1 exits its process without closing its comm
 *     ends crash    rank 1 is killed by a signal
 *     ends hang     rank 1 never responds: the others have a time limit */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi.h"

static Err run(CommWorld *w, Arena *a, const char *how)
{
    const CommSettings set = {.rank = w->rank,
                              .ranks = w->ranks,
                              .in_flight = 4,
                              .records = 4,
                              .timeout_s = strcmp(how, "hang") == 0 ? 0.3 : 60};
    Comm *c;
    int32_t everyone[64];
    for (int i = 0; i < set.ranks; i++) everyone[i] = i;
    TRY(comm_join(w, a, &set, &c));
    TRY(comm_agree(c, (RankList){set.ranks, everyone}, OK));
    if (set.rank == 1) {
        if (strcmp(how, "exit") == 0) _exit(3);
        if (strcmp(how, "crash") == 0) raise(SIGKILL);
        sleep(60);
    }
    const Err err = comm_agree(c, (RankList){set.ranks, everyone}, OK);
    if (err != OK) fprintf(stderr, "%s\n", err_text());
    comm_close(c);
    return err;
}

int main(int argc, char **argv)
{
    char path[1024];
    CommWorld *w;
    Arena a;
    snprintf(path, sizeof path, "%s/sheaf-mpi.so", getenv("SHEAF_BINARY_DIR"));
    if (argc != 2 || mpi_start(path, NULL, &w) != OK || arena_open(&a, "ends", 1 << 22) != OK)
        return fprintf(stderr, "ends exit|crash|hang; %s\n", err_text()), 2;
    const Err err = run(w, &a, argv[1]);
    comm_world_stop(w);
    arena_close(&a);
    return err != OK;
}
