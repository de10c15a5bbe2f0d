/* autotune.h -- the autotuner of a context: GEMM shapes in cuBLASLt's terms and the algorithm of
 * each.
 *
 * The algorithm of a GEMM depends on its LtShape alone. A context keeps one GemmEntry per shape
 * that it has met. Its algorithm is cuBLASLt's first suggestion, the fastest measured candidate, or
 * the one that a file names. Measuring has three stages:
 *
 *     candidates    autotune_candidates.c, autotune_tiles.c   all algorithms that may run the shape
 *     tournament    autotune_tournament.c                     times them on the caller's operands
 *     finalists     autotune_finalists.c                      times the last few inside the step */
#ifndef DEVICE_CUDA_GEMM_AUTOTUNE_H
#define DEVICE_CUDA_GEMM_AUTOTUNE_H

#include "device/cuda/attention/choice.h"
#include "device/cuda/cuda.h"

/* Pointwise work on the result of a GEMM before it is stored. GELU: aux = u, the result, and d =
 * gelu(u). DGELU: d = result * gelu'(aux). DSWIGLU: swiglu_dx of the result, with aux = gate. */
typedef enum { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_DGELU, EPILOGUE_DSWIGLU } EpilogueKind;

/* True if cuBLASLt has an epilogue of this kind. */
static inline bool epilogue_in_cublaslt(int64_t kind) { return kind != EPILOGUE_DSWIGLU; }

/* A GEMM in cuBLASLt's terms, column-major: d[rows, columns] = x[rows, depth] y[depth, columns].
 * All members are i64, so that shapes are compared as bytes and written as numbers. */
typedef struct {
    int64_t rows, columns, depth;
    int64_t x_ld, y_ld, d_ld;                   /* leading dimensions, as stored */
    int64_t x_transposed, y_transposed;         /* 1: stored transposed */
    int64_t type, out_type;                     /* DType of y, and of x: lt_x_type; of d */
    int64_t bias, accumulates;                  /* 1: has a bias epilogue; beta is not 0 */
    int64_t x_align, y_align, d_align, c_align; /* bytes, at most 16 */
    int64_t c_ld;                               /* of the addend; 0: the addend is d */
    int64_t epilogue, aux_ld;
} LtShape;

enum { LT_SHAPE_NUMBERS = sizeof(LtShape) / sizeof(int64_t) };

/* The algorithms of a shape that are still to be compared inside the step
 * (autotune_finalists.c). */
enum { MAX_FINALISTS = 4 };
typedef struct {
    cublasLtMatmulAlgo_t algo[MAX_FINALISTS];
    double ms[MAX_FINALISTS];
    int runs[MAX_FINALISTS], n, launches;
} Finalists;

/* The fusion of a GEMM and its epilogue: cuBLASLt's epilogue, two kernels, or the ping-pong kernel.
 * The numbers are those of the autotune file. */
typedef enum { FUSION_UNDECIDED, FUSION_EPILOGUE, FUSION_NONE, FUSION_PINGPONG } GemmFusion;

typedef struct {
    LtShape shape;
    cublasLtMatmulAlgo_t algo;
    bool known, possible; /* an algorithm was searched; one was found */
    GemmFusion fusion;    /* of a shape with an epilogue kind */
    bool follows_twin;    /* has the algorithm of the same GEMM without accumulation */
    Finalists *finalists; /* NULL: the algorithm is decided */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t x, y, d, c; /* c: NULL if the addend is d */
} GemmEntry;

/* The pointers and the beta of one launch. */
typedef struct {
    const void *x, *y, *bias;
    const void *x_scale, *y_scale; /* of operands of 8 bits: one f32 each, in device memory */
    const void *c;                 /* the addend; NULL: d */
    void *d, *aux;
    float keep;
} LtOperands;

/* A launch between two recorded events. */
typedef struct {
    cudaEvent_t event[2];
    int entry, finalist; /* indices: of the autotuner's entries, of the entry's finalists */
} TimedRun;

enum { MAX_TIMED_RUNS = 512 };

struct Autotuner {
    GemmEntry *entry;
    int n, cap;
    bool measuring;
    TimedRun timed[MAX_TIMED_RUNS]; /* [n_timed]: launches whose events are still to be read */
    int n_timed;
    AttentionTable attention;
};

/* Local. Returns the entry of a shape; a new shape gets its algorithm now, measured if the context
 * measures. `possible` is false if cuBLASLt cannot run it. The pointer is valid until the next
 * call. */
Err autotuner_find(DeviceQueue *q, const LtShape *shape, const LtOperands *operands,
                   GemmEntry **out);
/* Local. lookup returns the entry of a shape or NULL. put sets its fusion and algorithm, from a
 * file. */
GemmEntry *autotuner_lookup(Autotuner *all, const LtShape *shape);
Err autotuner_put(Autotuner *all, const LtShape *shape, GemmFusion fusion,
                  const cublasLtMatmulAlgo_t *algo);
/* Local. Launches the GEMM: gemm_entry_launch with the entry's algorithm, gemm_entry_run with the
 * next finalist, timed, while the context measures and finalists are left. */
Err gemm_entry_run(DeviceQueue *q, GemmEntry *c, const LtOperands *operands);
Err gemm_entry_launch(DeviceQueue *q, const GemmEntry *c, const LtOperands *operands);

/* ---- autotune_finalists.c ---- */

/* Local. Makes n algorithms, the fastest known first, the finalists of an entry. */
Err finalists_open(GemmEntry *c, const cublasLtMatmulAlgo_t *algo, int n);
/* Local. settle decides every entry by the times measured so far. drop removes the finalists of an
 * entry whose algorithm is no longer used. */
void finalists_settle(Autotuner *all);
void finalists_drop(GemmEntry *c);
void finalists_close(Autotuner *all);

/* ---- autotune_candidates.c, autotune_tiles.c, autotune_tournament.c ---- */

enum { MAX_CANDIDATES = 1024 };

/* Algorithms that may run one shape, without duplicates. */
typedef struct {
    cublasLtMatmulAlgo_t algo[MAX_CANDIDATES];
    float ms[MAX_CANDIDATES]; /* of those that were timed */
    int n;
} Candidates;

/* Local. Adds at most `limit` suggestions of cuBLASLt's heuristic, its best first. */
Err candidates_suggested(DeviceQueue *q, const GemmEntry *c, int limit, Candidates *f);
/* Local. Adds the heuristic's suggestions without workspace, and its best configurations of each
 * algorithm. */
void candidates_more(DeviceQueue *q, const GemmEntry *c, Candidates *f);
/* Local. Adds all configurations of the algorithms that have only a few. */
void candidates_configs(DeviceQueue *q, const GemmEntry *c, Candidates *f);
/* Local. Adds variants of an algorithm with other cluster shapes and block orders. */
void candidates_variants(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                         Candidates *f);
/* Local. Adds variants of an algorithm with the tiles that fill the SMs best. */
void candidates_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                      Candidates *f);
/* Local. Adds variants with every tile of the algorithm; few of them support a gelu epilogue. */
void candidates_all_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                          Candidates *f);
/* Local. Adds the algorithm if cuBLASLt's check accepts it for this shape. */
void candidates_check(const DeviceContext *context, const GemmEntry *c,
                      const cublasLtMatmulAlgo_t *algo, Candidates *f);
#define ALGO_SET(algo, name, value)                                                                \
    (cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_##name, &(value),             \
                                          sizeof(value)) == CUBLAS_STATUS_SUCCESS)
/* Local. Sets c->algo to the fastest candidate. The outputs then hold the result of one run. */
Err gemm_entry_tune(DeviceQueue *q, GemmEntry *c, const LtOperands *operands, Candidates *f);
/* Local. Returns the index of the fastest of n functions that compute the same. */
typedef Err (*FusionRun)(const void *context);
Err autotuner_fastest(DeviceQueue *q, const FusionRun *run, int n, const void *context, int *out);

#ifdef __cplusplus
extern "C" {
#endif
/* Local. Returns ERR_IO with the name of the call. */
Err blas_failed(cublasStatus_t status, const char *call);
#ifdef __cplusplus
}
#endif
#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) return blas_failed(status_, #call);                  \
    } while (0)

static inline cudaDataType_t lt_type(int64_t dtype)
{
    return dtype == BF16   ? CUDA_R_16BF
           : dtype == E4M3 ? CUDA_R_8F_E4M3
           : dtype == E5M2 ? CUDA_R_8F_E5M2
                           : CUDA_R_32F;
}

/* x has the type of y, but with a y of 8 bits e4m3. */
static inline cudaDataType_t lt_x_type(int64_t type)
{
    return dtype_is_fp8((DType)type) ? CUDA_R_8F_E4M3 : lt_type(type);
}

/* The layout of the addend: c, or d if the GEMM accumulates in place. */
static inline cublasLtMatrixLayout_t c_layout_of(const GemmEntry *c) { return c->c ? c->c : c->d; }

#endif
