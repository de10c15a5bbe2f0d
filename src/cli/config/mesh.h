/* mesh.h -- how the keys lay a run over ranks. */
#ifndef CLI_CONFIG_MESH_H
#define CLI_CONFIG_MESH_H

#include "cli/config/config.h"
#include "job/job.h"

/* Local. Settles mesh.dp, its two parts and run.ranks. ERR_CONFIG where they do not fit together, with numbers that do. */
Err config_settle_mesh(Config *c);
/* Local. As the compiler takes them; for rank 0. */
ParallelSettings config_parallel(const Config *c);

#endif
