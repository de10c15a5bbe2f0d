/* simulate.h -- memory, bytes sent and flops of all ranks, counted in their linked programs;
 * nothing runs.
 *
 *     dp=5 tp=2, zero 1, a pack of 13 blocks
 *
 *     dp           0 1 2      3 4
 *     home         3 blocks   2 blocks
 *     class        0          1
 *     ranks        6          4              one rank of each class is compiled
 *
 * Many ranks have programs of the same sizes: along tp those with shards of equal size, along dp
 * those with homes of equal size. Such ranks are a class; one of them is compiled and counted for
 * all. Classes are found from programs, not from formulas. A transfer lists the bytes that each
 * member of its group sends, so the program of one rank shows which ranks along its data axes
 * differ from it. Along pp every coordinate is compiled once, along tp every coordinate of stages
 * that are alike. The last rank of each
 * class is compiled too, to check that its counts equal those of the first. */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include "job/job.h"
#include "schedule/traffic.h"
#include "state/save.h"

/* Memory and work of one rank's program in a step, at full extents. */
typedef struct {
    size_t bytes[N_ARENAS];
    size_t save_bytes;   /* buffers of saves, outside the arenas */
    size_t valid_bytes;  /* memory of validation that is not shared with training */
    size_t pinned_bytes; /* of the host, for a device: LinkedProgram.pinned_bytes */
    size_t total_bytes;
    size_t peak_region[N_OWN_REGIONS]; /* bytes alive at the peak of the work arena */
    size_t peak_packs, peak_grads;     /* at that peak: gathered packs; gradients to be reduced */
    double flops, flops_recomputed;    /* flops excludes the recomputed ones */
    Traffic traffic;
    RoundTraffic round; /* of a further round, beyond `traffic` */
} RankCount;

/* The bytes that a rank needs of a cluster's memory: all, or without the host's part
 * (Cluster.host_memory). */
static inline size_t rank_count_bytes(const RankCount *c, bool host_memory)
{
    return c->total_bytes -
           (host_memory ? 0 : c->bytes[ARENA_HOST] + c->save_bytes + c->pinned_bytes);
}

/* Ranks with equal counts. */
typedef struct {
    int first, last; /* lowest and highest rank */
    int64_t ranks;
    RankCount count;
} RankClass;

typedef struct {
    const Mesh *mesh;
    const Job *shared; /* what the programs of all ranks share */
    int n;
    RankClass *class; /* [n], by first rank */
    int greatest;     /* index of the class that needs most memory */
    int *class_of;    /* [world]: the class of each rank; NULL: not asked for */
    Traffic traffic;  /* by all ranks together */
    double flops, flops_recomputed;
    int64_t compiled; /* number of programs compiled for this */
} Simulation;

typedef struct {
    const JobSettings *job; /* the rank is filled in */
    const Mesh *mesh;
    /* The first of several replicas saves, so it is a class of its own. */
    SaveMemory save;
    bool validates; /* run.valid_every > 0 */
    bool each_rank; /* fills Simulation.class_of */
    /* Called after each stage; NULL: not called. */
    void (*progress)(void *context, int stages_done, int stages);
    void *context;
} SimulateInput;

/* Local. Counts one rank, without save_bytes and valid_bytes. */
Err count_rank(const LinkedProgram *lp, RankCount *out);
/* Local. Counts all ranks of the mesh. The result is in `arena`; `temp` is another arena and is
 * rewound. */
Err simulate(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out);
/* Local. Finds and counts the classes: out->class, out->n, out->compiled (simulate_classes.c).
 * out->class_of has the first rank of each rank's class. */
Err simulate_classes(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out);

#endif
