/* autotune.h -- products as cuBLASLt sees them, and the algorithm each is run by.
 *
 * A Shape is all that an algorithm may depend on. A context keeps one Choice for each shape it has
 * met: cuBLASLt's first suggestion, the fastest of several by the clock, or what a file says. */
#ifndef DEVICE_CUDA_GEMM_AUTOTUNE_H
#define DEVICE_CUDA_GEMM_AUTOTUNE_H

#include "device/cuda/cuda.h"

/* What is done to the product before it is stored: with aux = u, d = gelu(u); d = product gelu'(aux);
 * what swiglu_dx makes of it, aux being gate. */
typedef enum { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_DGELU, EPILOGUE_DSWIGLU } EpilogueKind;

/* Has cuBLASLt an epilogue for it? */
static inline bool epilogue_in_cublaslt(int64_t kind) { return kind != EPILOGUE_DSWIGLU; }

/* Column-major: d[rows, columns] = x[rows, depth] y[depth, columns]. All i64, so that shapes are
 * compared as bytes and written as numbers. */
typedef struct {
    int64_t rows, columns, depth;
    int64_t x_ld, y_ld, d_ld;                   /* from column to column, as stored */
    int64_t x_transposed, y_transposed;         /* stored transposed */
    int64_t type, out_type;                     /* DType of x and y, of d */
    int64_t bias, accumulates;                  /* an epilogue; d is kept, or c added */
    int64_t x_align, y_align, d_align, c_align; /* bytes, at most 16 */
    int64_t c_ld;                               /* of what is added; 0: that is d */
    int64_t epilogue, aux_ld;
} LtShape;

enum { LT_SHAPE_NUMBERS = sizeof(LtShape) / sizeof(int64_t) };

/* Algorithms that are still to be decided between (choices_trial.c). */
enum { MAX_FINALISTS = 4 };
typedef struct {
    cublasLtMatmulAlgo_t algo[MAX_FINALISTS];
    double ms[MAX_FINALISTS];
    int runs[MAX_FINALISTS], n, launches;
} Finalists;

/* How a product and what stands beside it are run. */
typedef enum { FUSION_UNDECIDED, FUSION_EPILOGUE, FUSION_NONE, FUSION_PINGPONG } GemmFusion;

typedef struct {
    LtShape shape;
    cublasLtMatmulAlgo_t algo;
    bool known, possible; /* has an algorithm been looked for; was there one */
    GemmFusion fusion;    /* of a shape with a point */
    bool follows_twin;    /* the algorithm is that of the same product that does not add */
    Finalists *finalists; /* NULL: it is decided */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t x, y, d, c; /* c: NULL where it is d */
} GemmEntry;

/* What a product is run with. */
typedef struct {
    const void *x, *y, *bias;
    const void *c; /* NULL: d */
    void *d, *aux;
    float keep;
} LtOperands;

/* A run between two marks. */
typedef struct {
    cudaEvent_t event[2];
    int entry, finalist; /* of its trial */
} TimedRun;

enum { MAX_TIMED_RUNS = 512 };

struct Autotuner {
    GemmEntry *entry;
    int n, cap;
    bool measuring;
    TimedRun timed[MAX_TIMED_RUNS]; /* that were not read yet, the first n_timed */
    int n_timed;
};

/* Local. The choice for a shape, made now if it is new; `possible` says whether it can be run. The
 * pointer holds until the next call. */
Err autotuner_find(DeviceQueue *q, const LtShape *shape, const LtOperands *operands,
                   GemmEntry **out);
/* Local. What is known of a shape, or NULL; and what a file says of it. */
GemmEntry *autotuner_lookup(Autotuner *all, const LtShape *shape);
Err autotuner_put(Autotuner *all, const LtShape *shape, GemmFusion way,
                  const cublasLtMatmulAlgo_t *algo);
/* Local. Puts the product into the queue; gemm_entry_launch by the algorithm it has, gemm_entry_run by one that is to
 * be tried, if there are such. */
Err gemm_entry_run(DeviceQueue *q, GemmEntry *c, const LtOperands *operands);
Err gemm_entry_launch(DeviceQueue *q, const GemmEntry *c, const LtOperands *operands);

/* ---- choices_trial.c ---- */

/* Local. So many algorithms, the best known first, are to be decided between. */
Err finalists_open(GemmEntry *c, const cublasLtMatmulAlgo_t *algo, int n);
/* Local. Decides all; or drops that of a product that is not run any more. */
void finalists_settle(Autotuner *all);
void finalists_drop(GemmEntry *c);
void finalists_close(Autotuner *all);

/* ---- choices_field.c, choices_tiles.c, choices_measure.c ---- */

enum { MAX_CANDIDATES = 1024 };

/* Algorithms that a product can be run by, no two the same. */
typedef struct {
    cublasLtMatmulAlgo_t algo[MAX_CANDIDATES];
    float ms[MAX_CANDIDATES]; /* of those that were tried */
    int n;
} Candidates;

/* Local. cuBLASLt's own suggestions, its best first: `most` of them. */
Err candidates_suggested(DeviceQueue *q, const GemmEntry *c, int limit, Candidates *f);
/* Local. What it suggests under other conditions, or when asked for each algorithm it has. */
void candidates_more(DeviceQueue *q, const GemmEntry *c, Candidates *f);
/* Local. All forms of algorithms that have few. */
void candidates_configs(DeviceQueue *q, const GemmEntry *c, Candidates *f);
/* Local. Those that differ from one of them in how blocks are grouped. */
void candidates_variants(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                         Candidates *f);
/* Local. Those that differ from one of them in the tile, which is one that fills the card. */
void candidates_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                      Candidates *f);
/* Local. In any tile there is; beside a gelu few run. */
void candidates_all_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                          Candidates *f);
/* Local. Adds it where cuBLASLt says that it runs. */
void candidates_check(const DeviceContext *context, const GemmEntry *c,
                      const cublasLtMatmulAlgo_t *algo, Candidates *f);
#define ALGO_SET(algo, name, value)                                                                \
    (cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_##name, &(value),             \
                                          sizeof(value)) == CUBLAS_STATUS_SUCCESS)
/* Local. The fastest by the clock, which c->algo then is. Outputs hold what a run leaves. */
Err gemm_entry_tune(DeviceQueue *q, GemmEntry *c, const LtOperands *operands, Candidates *f);
/* Local. Which of n ways to do the same is the fastest, by the clock. */
typedef Err (*FusionRun)(const void *context);
Err autotuner_fastest(DeviceQueue *q, const FusionRun *run, int n, const void *context, int *out);

/* Local. Is ERR_IO with the name of the call. */
Err blas_failed(cublasStatus_t status, const char *call);
#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) return blas_failed(status_, #call);                  \
    } while (0)

static inline cudaDataType_t lt_type(int64_t dtype)
{
    return dtype == BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* What cuBLASLt is told that the product adds to. */
static inline cublasLtMatrixLayout_t c_layout_of(const GemmEntry *c) { return c->c ? c->c : c->d; }

#endif
