/* profiled.c -- ranks as threads that measure this machine together. */
#include "support/profiled.h"

#include "base/cores.h"
#include "plan/measure/measure.h"

typedef struct {
    const Profiled *set;
    Measurement out; /* of rank 0 */
} ProfileTask;

static Err profile_rank(WorldRank *r, void *work)
{
    ProfileTask *w = work;
    MeasureSettings set = {.device = w->set->device, .grid = GRID_QUICK, .budget_s = 0.03};
    Measurement *mine;
    Cores cores;
    cores_find(&cores);
    Err err = ARENA_NEW(r->arena, 1, &mine);
    if (err == OK) err = team_open_on(&set.team, w->set->threads, &cores, r->ranks, r->rank);
    if (err == OK) err = measure_rates(&set, r, mine);
    if (set.team) team_close(set.team);
    if (err == OK && r->rank == 0) w->out = *mine;
    world_leave(r, err);
    return err;
}

Err profiled_cluster(const Profiled *p, Cluster *out, double *spread)
{
    static ProfileTask task; /* the cluster points into it */
    task = (ProfileTask){.set = p};
    const WorldSettings set = {
        .ranks = p->ranks, .in_flight = 16, .records = 64, .body = profile_rank, .work = &task};
    TRY(world_run(&set));
    *spread = 0;
    for (int i = 0; i < task.out.n; i++)
        if (task.out.row[i].spread > *spread) *spread = task.out.row[i].spread;
    *out = (Cluster){.name = "profiled", .rates = measurement_rates(&task.out)};
    return OK;
}
