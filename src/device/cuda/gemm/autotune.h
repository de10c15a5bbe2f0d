/* autotune.h -- products as cuBLASLt sees them, and the algorithm each is run by.
 *
 * A Shape is all that an algorithm may depend on. A context keeps one Choice for each shape it has
 * met: cuBLASLt's first suggestion, the fastest of several by the clock, or what a file says. */
#ifndef DEVICE_CUDA_GEMM_AUTOTUNE_H
#define DEVICE_CUDA_GEMM_AUTOTUNE_H

#include "device/cuda/cuda.h"

/* What is done to the product before it is stored: with aux = u, d = gelu(u); d = product gelu'(aux);
 * what swiglu_dx makes of it, aux being gate. */
typedef enum { POINT_NONE, POINT_GELU, POINT_DGELU, POINT_DSWIGLU } Point;

/* Has cuBLASLt an epilogue for it? */
static inline bool point_in_library(int64_t point) { return point != POINT_DSWIGLU; }

/* Column-major: d[rows, columns] = x[rows, depth] y[depth, columns]. All i64, so that shapes are
 * compared as bytes and written as numbers. */
typedef struct {
    int64_t rows, columns, depth;
    int64_t x_step, y_step, d_step;             /* from column to column, as stored */
    int64_t x_turned, y_turned;                 /* stored transposed */
    int64_t type, out_type;                     /* DType of x and y, of d */
    int64_t bias, adds;                         /* an epilogue; d is kept, or c added */
    int64_t x_align, y_align, d_align, c_align; /* bytes, at most 16 */
    int64_t c_step;                             /* of what is added; 0: that is d */
    int64_t point, aux_step;
} Shape;

enum { SHAPE_NUMBERS = sizeof(Shape) / sizeof(int64_t) };

/* Algorithms that are still to be decided between (choices_trial.c). */
enum { TRIED = 4 };
typedef struct {
    cublasLtMatmulAlgo_t algo[TRIED];
    double ms[TRIED];
    int runs[TRIED], n, turn;
} Trial;

/* How a product and what stands beside it are run. */
typedef enum { WAY_OPEN, WAY_ONE, WAY_APART, WAY_RELAY } Way;

typedef struct {
    Shape shape;
    cublasLtMatmulAlgo_t algo;
    bool known, possible; /* has an algorithm been looked for; was there one */
    Way way;              /* of a shape with a point */
    bool follows;         /* the algorithm is that of the same product that does not add */
    Trial *trial;         /* NULL: it is decided */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t x, y, d, c; /* c: NULL where it is d */
} Choice;

/* What a product is run with. */
typedef struct {
    const void *x, *y, *bias;
    const void *c; /* NULL: d */
    void *d, *aux;
    float keep;
} Operands;

/* A run between two marks. */
typedef struct {
    cudaEvent_t mark[2];
    int choice, entry; /* of its trial */
} Timed;

enum { MAX_TIMED = 512 };

struct Choices {
    Choice *choice;
    int n, room;
    bool measure;
    Timed timed[MAX_TIMED]; /* that were not read yet, the first n_timed */
    int n_timed;
};

/* Local. The choice for a shape, made now if it is new; `possible` says whether it can be run. The
 * pointer holds until the next call. */
Err choices_find(DeviceQueue *q, const Shape *shape, const Operands *with, Choice **out);
/* Local. What is known of a shape, or NULL; and what a file says of it. */
Choice *choices_known(Choices *all, const Shape *shape);
Err choices_put(Choices *all, const Shape *shape, Way way, const cublasLtMatmulAlgo_t *algo);
/* Local. Puts the product into the queue; choice_run by the algorithm it has, choice_use by one that is to
 * be tried, if there are such. */
Err choice_use(DeviceQueue *q, Choice *c, const Operands *with);
Err choice_run(DeviceQueue *q, const Choice *c, const Operands *with);

/* ---- choices_trial.c ---- */

/* Local. So many algorithms, the best known first, are to be decided between. */
Err trial_open(Choice *c, const cublasLtMatmulAlgo_t *algo, int n);
/* Local. Decides all; or drops that of a product that is not run any more. */
void trials_end(Choices *all);
void trial_drop(Choice *c);
void trials_close(Choices *all);

/* ---- choices_field.c, choices_tiles.c, choices_measure.c ---- */

enum { MAX_FIELD = 1024 };

/* Algorithms that a product can be run by, no two the same. */
typedef struct {
    cublasLtMatmulAlgo_t algo[MAX_FIELD];
    float ms[MAX_FIELD]; /* of those that were tried */
    int n;
} Field;

/* Local. cuBLASLt's own suggestions, its best first: `most` of them. */
Err field_suggested(DeviceQueue *q, const Choice *c, int most, Field *f);
/* Local. What it suggests under other conditions, or when asked for each algorithm it has. */
void field_others(DeviceQueue *q, const Choice *c, Field *f);
/* Local. All forms of algorithms that have few. */
void field_forms(DeviceQueue *q, const Choice *c, Field *f);
/* Local. Those that differ from one of them in how blocks are grouped. */
void field_variants(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f);
/* Local. Those that differ from one of them in the tile, which is one that fills the card. */
void field_tiles(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f);
/* Local. In any tile there is; beside a gelu few run. */
void field_all_tiles(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f);
/* Local. Adds it where cuBLASLt says that it runs. */
void field_try(const DeviceContext *context, const Choice *c, const cublasLtMatmulAlgo_t *algo,
               Field *f);
#define ALGO_SET(algo, name, value)                                                                \
    (cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_##name, &(value),             \
                                          sizeof(value)) == CUBLAS_STATUS_SUCCESS)
/* Local. The fastest by the clock, which c->algo then is. Outputs hold what a run leaves. */
Err choice_measure(DeviceQueue *q, Choice *c, const Operands *with, Field *f);
/* Local. Which of n ways to do the same is the fastest, by the clock. */
typedef Err (*ChoiceRun)(const void *what);
Err choices_fastest(DeviceQueue *q, const ChoiceRun *way, int n, const void *what, int *out);

/* Local. Is ERR_IO with the name of the call. */
Err blas_failed(cublasStatus_t status, const char *call);
#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) return blas_failed(status_, #call);                  \
    } while (0)

static inline cudaDataType_t type_of(int64_t dtype)
{
    return dtype == BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* What cuBLASLt is told that the product adds to. */
static inline cublasLtMatrixLayout_t added_of(const Choice *c) { return c->c ? c->c : c->d; }

#endif
