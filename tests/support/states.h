/* states.h -- a small job under many layouts, its state put together, saved and loaded.
 *
 *     StateWorld w;
 *     state_world_open(&w, "dp=2 zero=1");
 *     state_world_run(&w, body, &work);        body(rank, work) on each rank, as a thread
 *
 * The model: tied weights, 4 query heads of 2 key heads (tp=3: uneven, with copies), 23 tokens,
 * four layers; homes are cut by 16. Every layout steps on the same six sequences. */
#ifndef SUPPORT_STATES_H
#define SUPPORT_STATES_H

#include <pthread.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "state/load.h"
#include "state/save.h"
#include "world/world.h"

/* Ends with NULL. The first is one rank. */
extern const char *const state_layouts[];
enum { MAX_STATE_LAYOUTS = 32, STATE_SEQUENCES = 6 };

typedef struct {
    const char *words;
    int ranks;
    Arena arena;
    JobSettings set;
    Job *job; /* [ranks] */
} StateWorld;

typedef struct {
    WorldRank *world;
    const Job *job;
    Rank rank;
} StateRank;

/* What is other than usual. */
typedef struct {
    const char *words; /* the layout */
    DType dtype;       /* F64 is usual */
    OptimKind kind;
    int64_t vocab;             /* 0: 23 */
    const ModelConfig *config; /* another model, which outlives the world; NULL: that of above */
} StateSpec;

/* Fails the test when it does not compile. */
void state_world_open(StateWorld *w, const char *words);
void state_world_open_as(StateWorld *w, const StateSpec *spec);
void state_world_close(StateWorld *w);
/* Every arena is poisoned. The first error of its ranks. */
Err state_world_run(const StateWorld *w, Err (*body)(StateRank *r, void *work), void *work);

/* Collective. Step `step`, from 1, on its own tokens. */
Err state_step(StateRank *r, int64_t step, double *loss);

/* Every tensor whole, in the order of state_tensors, as the ranks' pieces make it. */
typedef struct {
    StateTensors tensors;
    char **data;  /* [tensors.n] */
    bool **known; /* [tensors.n][elements] */
    pthread_mutex_t lock;
    Arena arena;
} StateWhole;
void state_whole_open(StateWhole *h, const StateWorld *w);
void state_whole_close(StateWhole *h);
/* Local. What the rank has, to the whole; ERR_CHECK where it is not what is there. */
Err state_collect(StateRank *r, StateWhole *h);
/* Local. Fills what the rank has by element of the whole, so that all layouts get the same. */
void state_fill(StateRank *r, uint64_t seed);

/* Local. Scalars of a save at that step. */
StateScalars state_scalars(int64_t step);
/* Collective. Saves and commits; each rank waits for it. */
Err state_save(StateRank *r, const char *checkpoints, int64_t step, bool snapshot);
/* Collective. Loads what was saved at that step. */
Err state_load_from(StateRank *r, const char *checkpoints, int64_t step, LoadResult *out);

/* A folder that is not there yet; and gone again, with all in it. */
void state_folder(char path[64]);
void state_folder_remove(const char *path);

#endif
