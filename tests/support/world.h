/* world.h -- a job run by several thread-ranks, and what they made of it, put together.
 *
 *     World w = world_of(test_job_settings("llama", JOB_STEP));   change set.parallel, micros, ...
 *     WorldResult one, many;
 *     DO(world_run_job(&w, &one));
 *     ...
 *     world_differ(&one, &many, PART_MASTER)
 *
 * Micro-batch number i of step s is the same however numbers are dealt to ranks, and so are the
 * weights at the start, which go by element of the whole parameter. Every arena is poisoned. */
#ifndef SUPPORT_WORLD_H
#define SUPPORT_WORLD_H

#include "support/jobs.h"

enum { MAX_WORLD = 16, WORLD_STEPS = 8, N_PARTS = PART_MOMENT2 + 1 };

typedef struct {
    JobSettings set; /* of every rank; micros are those of one rank */
    const Device *device;
    int steps;
    double lr;
    int numbers;  /* micro-batches of a step that have rows; 0: all that the ranks have room for */
    int without;  /* number of a micro-batch whose tokens all have weight 0; -1: none */
    bool hostile; /* see CommSettings */
    bool staged;  /* likewise */
    const struct NcclLibrary *nccl; /* moves memory of the device; NULL: the comm does */
    double jitter_s;                /* ranks sleep at random, so long at most */
    uint64_t seed;                  /* of both */
    bool
        validate; /* after the steps: the loss alone, of other batches, by ranks that share state */
    bool init;    /* weights as a run starts from, not those of tests */
    bool capture; /* see RankSettings */
    bool tries;   /* products, before the first step and before the first validation */
    unsigned char pattern; /* not 0: fills the arenas at first, instead of NaN, and all rows are
                              live; see `top` */
} World;

typedef struct {
    const Model *model;
    int ranks;
    int64_t *at;           /* [params + 1]: where each begins in the arrays below */
    double *part[N_PARTS]; /* after the last step */
    double loss[WORLD_STEPS], norm[WORLD_STEPS];
    int64_t live[WORLD_STEPS];
    double valid_loss;
    /* Of all ranks and steps: what left them, by kind, and in scalars; and in all. */
    int64_t sent[N_COMM_KINDS], scalars_sent, elements;
    int64_t predicted, scalars_predicted; /* in all, from the programs */
    uint64_t delays;                      /* of all ranks: where they might have slept */
    int64_t captured, launched;           /* of all ranks: graphs made, steps run by one */
    int64_t gathered; /* elements of packs that one rank's list gathers in a step */
    /* Of each rank: what linking said, and past the highest byte that is not the pattern. */
    size_t bytes[MAX_WORLD][N_ARENAS], top[MAX_WORLD][N_ARENAS];
    Arena arena;
} WorldResult;

/* Local. Five steps on `ref`. */
World world_of(JobSettings set);
/* Local. Runs it on as many threads as its mesh has ranks. ERR_CHECK when ranks that hold the same
 * element, or the same loss or norm, differ by a bit, or nobody holds one. */
Err world_run_job(const World *w, WorldResult *out);
void world_result_close(WorldResult *r);

/* Local. As ranks_differ and ranks_equal. */
double world_differ(const WorldResult *a, const WorldResult *b, ParamPart part);
/* Local. Losses, norms and every part, to the bit; else `what` says where. */
bool world_equal(const WorldResult *a, const WorldResult *b, char what[128]);
/* Local. The largest relative difference of loss, norm, gradients, weights and moments. */
double world_differ_all(const WorldResult *a, const WorldResult *b);

/* Fills arenas with a pattern, runs a step, twice: the highest byte that changed is what linking
 * said, in each arena of each rank; fails the test otherwise. */
void world_peaks_are_exact(const char *name, World w);

#endif
