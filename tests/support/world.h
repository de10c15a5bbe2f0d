/* world.h -- runs a job on several thread-ranks and assembles their results.
 *
 *     World w = world_of(test_job_settings("llama", JOB_STEP));   change set.parallel, micros, ...
 *     WorldResult one, many;
 *     DO(world_run_job(&w, &one));
 *     ...
 *     world_differ(&one, &many, PART_MASTER)
 *
 * Micro-batch number i of step s is the same however micro-batches are distributed over ranks. So
 * are the initial weights, which are drawn by element of the whole parameter. Every arena is
 * poisoned. */
#ifndef SUPPORT_WORLD_H
#define SUPPORT_WORLD_H

#include "support/jobs.h"

enum { MAX_WORLD = 16, WORLD_STEPS = 8, N_PARTS = PART_MOMENT2 + 1 };

typedef struct {
    JobSettings set; /* of every rank; micros are those of one rank */
    const Device *device;
    int steps;
    double lr;
    int numbers;  /* micro-batches of a step that have rows; 0: as many as the ranks can take */
    int64_t rows; /* live rows of the last micro-batch that has rows; 0: as test_job_batch */
    int without;  /* number of a micro-batch whose tokens all have weight 0; -1: none */
    bool hostile; /* see CommSettings */
    bool staged;  /* see CommSettings */
    const struct NcclLibrary *nccl; /* moves device memory; NULL: the comm does */
    double jitter_s;                /* longest random sleep of a rank; 0: none */
    uint64_t seed;                  /* of the hostile comm and of the jitter */
    bool validate; /* the loss of other batches after the steps, by ranks that share state */
    bool init;     /* initial weights as in a run, not those of tests */
    bool capture;  /* see RankSettings; with nccl, transfers too */
    bool autotune; /* before the first step and before the first validation */
    bool sums;     /* after each step a sum over all ranks in host memory, as in a training run */
    int threads;   /* of each rank's team; 0: ranks have none, and poll between instructions only */
    /* Called on the rank's thread before its first step; NULL: nothing. */
    void (*opened)(Rank *r);
    /* Changes the job of a rank before it runs; NULL: nothing. */
    Err (*change)(Job *job, Arena *arena);
    /* Gives the parameters of the result's model their whole shapes, if `change` alters them. */
    void (*reshape)(Model *m);
    /* Not 0: fills the arenas instead of NaN, and all rows are live; see `top`. */
    unsigned char pattern;
} World;

typedef struct {
    const Model *model;
    int ranks;
    int64_t *at;           /* [params + 1]: where each parameter begins in the arrays below */
    double *part[N_PARTS]; /* after the last step */
    double loss[WORLD_STEPS], norm[WORLD_STEPS];
    int64_t live[WORLD_STEPS];
    double valid_loss;
    int64_t elements; /* of all parameters */
    /* Bytes sent by all ranks in all steps, by kind and for scalars. */
    int64_t sent[N_COMM_KINDS], scalars_sent;
    int64_t predicted, scalars_predicted; /* totals, computed from the programs */
    int64_t channels;                     /* of all ranks: linked_channels */
    uint64_t delays;                      /* of all ranks: places where jitter might sleep */
    int64_t captured, launched;           /* of all ranks: graphs made and launched */
    int64_t gathered; /* elements of packs that one rank's list gathers in a step */
    /* Per rank and arena: bytes that linking computed; end of the last byte not of the pattern. */
    size_t bytes[MAX_WORLD][N_ARENAS], top[MAX_WORLD][N_ARENAS];
    Arena arena;
} WorldResult;

/* Local. Five steps on `ref`. */
World world_of(JobSettings set);
/* Local. Runs the job on one thread per rank of its mesh. ERR_CHECK if ranks differ by a bit in an
 * element that both hold, in the loss or in the norm, or if no rank holds an element. */
Err world_run_job(const World *w, WorldResult *out);
void world_result_close(WorldResult *r);

/* Local. The largest difference of a part, relative to the parameter; see ranks_differ. */
double world_differ(const WorldResult *a, const WorldResult *b, ParamPart part);
/* Local. True if losses, norms and all parts are equal to the bit; else `what` names a
 * difference. */
bool world_equal(const WorldResult *a, const WorldResult *b, char what[128]);
/* Local. The largest relative difference of loss, norm, gradients, weights and moments. */
double world_differ_all(const WorldResult *a, const WorldResult *b);

/* Fills arenas with a pattern and runs a step, for two patterns. Fails the test unless the highest
 * byte that changed is the size that linking computed, in each arena of each rank. */
void world_peaks_are_exact(const char *name, World w);

#endif
