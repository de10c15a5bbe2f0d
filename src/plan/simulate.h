/* simulate.h -- the linked programs of all ranks, walked and counted; nothing runs.
 *
 *     dp=5 tp=2, zero 1, a pack of 13 blocks
 *
 *     dp           0 1 2      3 4
 *     home         3 blocks   2 blocks
 *     class        0          1
 *     ranks        6          4              one rank of each is compiled, and counts for all
 *
 * Many ranks have programs of the same sizes: along tp those whose parts are as large, along dp
 * those whose homes are. A class is such ranks; one of them is compiled, and counts for all.
 * Classes are found from programs too, not from formulas: a transfer lists what each member of its
 * group sends, so the program of one rank tells which others along its data axes differ from it;
 * along other axes every coordinate is compiled once. The last rank of each class is compiled
 * as well, to see that it counts like the first. */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include "job/job.h"
#include "schedule/sent.h"
#include "state/save.h"

/* What one rank's program takes and does in a step, at full extents. */
typedef struct {
    size_t bytes[N_ARENAS];
    size_t save_bytes; /* what saves take, beside the arenas */
    size_t total_bytes;
    size_t peak_region[N_OWN_REGIONS]; /* of the work arena, where it is highest */
    size_t peak_packs, peak_grads;
    double flops, flops_recomputed; /* again: computed a second time; not in flops */
    Traffic traffic;
} RankCount;

/* Ranks that count alike. */
typedef struct {
    int first, last; /* the lowest of them and the highest */
    int64_t ranks;
    RankCount count;
} RankClass;

typedef struct {
    const Mesh *mesh;
    int n;
    RankClass *class; /* [n], by first rank */
    int greatest;     /* the class that takes most memory */
    Traffic traffic;  /* by all ranks together */
    double flops, flops_recomputed;
    int64_t compiled; /* programs, to find this */
} Simulation;

typedef struct {
    const JobSettings *job; /* of any rank: each rank's number is filled in */
    const Mesh *mesh;
    SaveRoom save; /* of ranks that hold the same the first alone saves it: classes of their own */
} SimulateInput;

/* Local. */
Err count_rank(const LinkedProgram *lp, RankCount *out);
/* Local. Counts all ranks of the mesh. The result is in `arena`; `temp` is another, rewound. */
Err simulate(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out);
/* Local. The second half: classes into out->class, counted (simulate_classes.c). */
Err simulate_classes(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out);

#endif
