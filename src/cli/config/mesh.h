/* mesh.h -- from the keys of mesh and parallel to a mesh that is consistent. */
#ifndef CLI_CONFIG_MESH_H
#define CLI_CONFIG_MESH_H

#include "cli/config/config.h"
#include "job/job.h"

/* Local. Settles mesh.dp, its two axes and run.ranks. ERR_CONFIG if they contradict each other; the
 * message gives numbers that fit. */
Err config_settle_mesh(Config *c);
/* Local. True if parallel.zero_weights gives some weights a level, in all layers or in some. */
bool config_parts_weights(const Config *c);
/* Local. True if layouts of weights along tp are to be searched. */
bool config_searches_tp(const Config *c);
/* Local. The same keys as the compiler takes them, for rank 0. */
ParallelSettings config_parallel(const Config *c);

#endif
