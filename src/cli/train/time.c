/* time.c -- the machine that the time of a step is planned for, and the line that says so. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/config/nodes.h"
#include "cli/machine.h"
#include "cli/train/train.h"
#include "plan/cluster/cluster.h"

static Err read_into(TrainSession *s, const char *path)
{
    TRY(cluster_read(path, &s->arena, &s->cluster));
    TRY(config_order_cluster(&s->config, path, &s->arena, &s->cluster));
    snprintf(s->cluster_path, sizeof s->cluster_path, "%s", path);
    return OK;
}

/* Ranks that share cores wait for each other's: no sum of kernels is the time of a step then. */
static int cores_of(const Launch *l)
{
    return l->cores.quota < l->cores.n ? l->cores.quota : l->cores.n;
}

static bool has_cores(const TrainSession *s)
{
    const Launch *l = &s->launch;
    return s->device->runtime || l->sharing * l->threads <= cores_of(l);
}

Err train_read_cluster(TrainSession *s)
{
    char path[1024];
    s->run.loop.unplanned = !has_cores(s);
    if (*s->config.run_cluster) {
        TRY(read_into(s, s->config.run_cluster));
        s->run.loop.cluster = &s->cluster;
        return OK;
    }
    if (!s->device->runtime && strcmp(s->device->name, "cpu") != 0) return OK;
    if (!machine_profile_path(s->device, s->launch.ranks, (int)s->config.run_threads, path,
                              sizeof path) ||
        access(path, R_OK) != 0)
        return OK;
    if (read_into(s, path) == OK)
        s->run.loop.cluster = &s->cluster;
    else
        fprintf(stderr, "sheaf: WARNING: %s; the time of a step is not planned with it\n",
                err_text());
    return OK;
}

void report_step_time(const TrainSession *s, const TrainLoop *loop)
{
    bool measures;
    const double seconds = train_loop_plan(loop, &measures);
    if (s->run.loop.unplanned)
        printf("step time: not planned, as %d ranks of %d thread%s share %d core%s\n",
               s->launch.sharing, s->launch.threads, s->launch.threads == 1 ? "" : "s",
               cores_of(&s->launch), cores_of(&s->launch) == 1 ? "" : "s");
    else if (seconds > 0)
        printf("step time: planned %.4g ms, with the rates of %s (%s)%s\n", 1e3 * seconds,
               s->cluster.name, s->cluster_path,
               measures ? "; from step 5 on with this run's own kernels" : "");
    else if (measures)
        printf("step time: planned from step 5 on, with this run's own kernels; `sheaf profile` on "
               "this machine, or run.cluster=FILE, plans the time of a step before\n");
    else
        printf("step time: not planned, as no cluster file is given (run.cluster, or that of "
               "`sheaf profile --device %s`) and the kernels of this device are not timed one by "
               "one\n",
               s->device->name);
}
