/* choices_field.c -- which algorithms there are for a product.
 *
 * cuBLASLt suggests a handful, the one it thinks best first. More are found by asking again:
 *
 *     with no scratch             it then leaves out those that split the depth
 *     for each algorithm it has   its best form of each, not of the best few alone
 *     with other groupings        blocks in clusters of another shape, or walked in another order
 *
 * The last are checked by it before they are tried. Nothing here is about numbers: sums are f32, and
 * how the depth is split stays as it was suggested. */
#include "device/cuda/choices.h"

#include <string.h>

enum { MOST_SUGGESTED = 24, MOST_IDS = 32 };

static void field_add(Field *f, const cublasLtMatmulAlgo_t *algo)
{
    for (int i = 0; i < f->n; i++)
        if (memcmp(&f->algo[i], algo, sizeof *algo) == 0) return;
    if (f->n < MAX_FIELD) f->algo[f->n++] = *algo;
}

/* Under which conditions it is asked. */
typedef struct {
    size_t scratch;
    uint32_t mode, reductions; /* how parts of a depth may be summed up */
} Wish;

static const Wish first_wish = {BLAS_SCRATCH, CUBLASLT_SEARCH_BEST_FIT,
                                CUBLASLT_REDUCTION_SCHEME_MASK};
/* Others have no right to round parts of a sum to the output's type. */
static const Wish no_scratch = {0, CUBLASLT_SEARCH_BEST_FIT, CUBLASLT_REDUCTION_SCHEME_NONE};
static const Wish by_id = {BLAS_SCRATCH, CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID,
                           CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};

static cublasStatus_t make_wish(const Shape *s, Wish w, cublasLtMatmulPreference_t *wish)
{
    const uint32_t x = (uint32_t)s->x_align, y = (uint32_t)s->y_align, d = (uint32_t)s->d_align;
    const uint32_t c = s->c_step ? (uint32_t)s->c_align : d;
    const cublasStatus_t status = cublasLtMatmulPreferenceCreate(wish);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
#define WISH(name, value)                                                                          \
    (void)cublasLtMatmulPreferenceSetAttribute(*wish, CUBLASLT_MATMUL_PREF_##name, &(value),       \
                                               sizeof(value))
    WISH(SEARCH_MODE, w.mode);
    WISH(MAX_WORKSPACE_BYTES, w.scratch);
    WISH(REDUCTION_SCHEME_MASK, w.reductions);
    WISH(MIN_ALIGNMENT_A_BYTES, x);
    WISH(MIN_ALIGNMENT_B_BYTES, y);
    WISH(MIN_ALIGNMENT_C_BYTES, c);
    WISH(MIN_ALIGNMENT_D_BYTES, d);
#undef WISH
    return CUBLAS_STATUS_SUCCESS;
}

/* answer[0] comes in with the algorithm that is asked for, where the mode is to ask for one. */
static cublasStatus_t ask(DeviceQueue *q, const Choice *c, Wish w,
                          cublasLtMatmulHeuristicResult_t *answer, int *n)
{
    cublasLtMatmulPreference_t wish;
    cublasStatus_t status = make_wish(&c->shape, w, &wish);
    const int room = *n;
    *n = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = cublasLtMatmulAlgoGetHeuristic(q->context->blas, c->desc, c->x, c->y, added_of(c),
                                            c->d, wish, room, answer, n);
    (void)cublasLtMatmulPreferenceDestroy(wish);
    if (status != CUBLAS_STATUS_SUCCESS) *n = 0;
    return status;
}

static void add_answer(Field *f, const cublasLtMatmulHeuristicResult_t *answer, int n)
{
    for (int i = 0; i < n; i++)
        if (answer[i].state == CUBLAS_STATUS_SUCCESS && answer[i].workspaceSize <= BLAS_SCRATCH)
            field_add(f, &answer[i].algo);
}

Err field_suggested(DeviceQueue *q, const Choice *c, int most, Field *f)
{
    cublasLtMatmulHeuristicResult_t answer[MOST_SUGGESTED];
    int n = most < MOST_SUGGESTED ? most : MOST_SUGGESTED;
    const cublasStatus_t status = ask(q, c, first_wish, answer, &n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) BLAS_TRY(status);
    add_answer(f, answer, n);
    return OK;
}

void field_others(DeviceQueue *q, const Choice *c, Field *f)
{
    const cudaDataType_t in = type_of(c->shape.type), out = type_of(c->shape.out_type);
    cublasLtMatmulHeuristicResult_t answer[MOST_SUGGESTED];
    int id[MOST_IDS], n_ids = 0, n = MOST_SUGGESTED;
    (void)ask(q, c, no_scratch, answer, &n);
    add_answer(f, answer, n);
    if (cublasLtMatmulAlgoGetIds(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out,
                                 MOST_IDS, id, &n_ids) != CUBLAS_STATUS_SUCCESS)
        return;
    for (int i = 0; i < n_ids; i++) {
        n = MOST_SUGGESTED;
        memset(answer, 0, sizeof answer);
        if (cublasLtMatmulAlgoInit(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out,
                                   out, id[i], &answer[0].algo) != CUBLAS_STATUS_SUCCESS)
            continue;
        (void)ask(q, c, by_id, answer, &n);
        add_answer(f, answer, n);
    }
}

/* Does cuBLASLt say that it runs? */
static bool runs(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(q->context->blas, c->desc, c->x, c->y, added_of(c), c->d, algo,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= BLAS_SCRATCH;
}

void field_variants(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f)
{
    for (uint32_t on = 0; on < 2; on++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &on,
                                                 sizeof on) == CUBLAS_STATUS_SUCCESS &&
            runs(q, c, &algo))
            field_add(f, &algo);
    }
    for (uint16_t shape = CUBLASLT_CLUSTER_SHAPE_1x1x1; shape <= CUBLASLT_CLUSTER_SHAPE_4x4x1;
         shape++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                                 &shape, sizeof shape) == CUBLAS_STATUS_SUCCESS &&
            runs(q, c, &algo))
            field_add(f, &algo);
    }
}
