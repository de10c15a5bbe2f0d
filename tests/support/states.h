/* states.h -- a small job under many layouts: its state is assembled, saved and loaded.
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

/* Differences from the default job. */
typedef struct {
    const char *words; /* the layout */
    DType dtype;       /* the default is F64 */
    OptimKind kind;
    int64_t vocab;             /* 0: 23 */
    const ModelConfig *config; /* another model, which outlives the world; NULL: the one above */
    Err (*change)(Job *job, Arena *arena); /* changes the job of a rank; NULL: nothing */
} StateSpec;

/* Compiles the job of every rank; fails the test if one does not compile. */
void state_world_open(StateWorld *w, const char *words);
void state_world_open_as(StateWorld *w, const StateSpec *spec);
void state_world_close(StateWorld *w);
/* Runs body on each rank, with poisoned arenas. Returns the first error of a rank. */
Err state_world_run(const StateWorld *w, Err (*body)(StateRank *r, void *work), void *work);

/* Collective. Runs step `step`, from 1, on the tokens of that step. */
Err state_step(StateRank *r, int64_t step, double *loss);

/* Every tensor, assembled from the ranks' pieces, in the order of state_tensors. */
typedef struct {
    StateTensors tensors;
    char **data;  /* [tensors.n] */
    bool **known; /* [tensors.n][elements] */
    pthread_mutex_t lock;
    Arena arena;
} StateWhole;
void state_whole_open(StateWhole *h, const StateWorld *w);
void state_whole_close(StateWhole *h);
/* Local. Copies the rank's pieces into the whole tensors. ERR_CHECK if an element is already known
 * with another value. */
Err state_collect(StateRank *r, StateWhole *h);
/* Local. Fills the rank's pieces with values that depend on the global element index only. */
void state_fill(StateRank *r, uint64_t seed);

/* Local. Returns the scalars of a save at that step. */
StateScalars state_scalars(int64_t step);
/* Collective. Saves and commits a checkpoint; each rank waits for both. */
Err state_save(StateRank *r, const char *checkpoints, int64_t step, bool snapshot);
/* Collective. Loads the checkpoint of that step. */
Err state_load_from(StateRank *r, const char *checkpoints, int64_t step, LoadResult *out);

/* state_folder returns the path of a new folder; state_folder_remove deletes it recursively. */
void state_folder(char path[64]);
void state_folder_remove(const char *path);

#endif
