/* autotune_candidates.c -- which algorithms there are for a product.
 *
 * cuBLASLt suggests a handful, the one it thinks best first. More are found by asking again:
 *
 *     with no scratch             it then leaves out those that split the depth
 *     for each algorithm it has   its best form of each, not of the best few alone
 *     in every form               of algorithms that have few; beside a gelu it suggests few of them
 *     with other groupings        blocks in clusters of another shape, or walked in another order
 *     with other tiles            those that fill the card (choices_tiles.c)
 *
 * The last three are checked by it before they are tried. Nothing here is about numbers: sums are f32,
 * parts of a depth too, and the depth is split as it was suggested, or, with other tiles, not at all. */
#include "device/cuda/gemm/autotune.h"

#include <string.h>

enum { MAX_SUGGESTED = 24, MAX_IDS = 32, MAX_TILES = 16 };

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

/* None has the right to round parts of a sum to the output's type. */
static const Wish first_wish = {BLAS_SCRATCH, CUBLASLT_SEARCH_BEST_FIT,
                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
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
    cublasLtMatmulHeuristicResult_t answer[MAX_SUGGESTED];
    int n = most < MAX_SUGGESTED ? most : MAX_SUGGESTED;
    const cublasStatus_t status = ask(q, c, first_wish, answer, &n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) BLAS_TRY(status);
    add_answer(f, answer, n);
    return OK;
}

/* The algorithms that cuBLASLt has for these types, each in no form yet. */
static int plain_algorithms(DeviceQueue *q, const Choice *c, cublasLtMatmulAlgo_t algo[MAX_IDS])
{
    const cudaDataType_t in = type_of(c->shape.type), out = type_of(c->shape.out_type);
    int id[MAX_IDS], n_ids = 0, n = 0;
    if (cublasLtMatmulAlgoGetIds(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out,
                                 MAX_IDS, id, &n_ids) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n_ids; i++)
        n += cublasLtMatmulAlgoInit(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out,
                                    out, id[i], &algo[n]) == CUBLAS_STATUS_SUCCESS;
    return n;
}

void field_others(DeviceQueue *q, const Choice *c, Field *f)
{
    cublasLtMatmulHeuristicResult_t answer[MAX_SUGGESTED];
    cublasLtMatmulAlgo_t plain[MAX_IDS];
    const int n_plain = plain_algorithms(q, c, plain);
    int n = MAX_SUGGESTED;
    (void)ask(q, c, no_scratch, answer, &n);
    add_answer(f, answer, n);
    for (int i = 0; i < n_plain; i++) {
        n = MAX_SUGGESTED;
        memset(answer, 0, sizeof answer);
        answer[0].algo = plain[i];
        (void)ask(q, c, by_id, answer, &n);
        add_answer(f, answer, n);
    }
}

void field_try(const DeviceContext *context, const Choice *c, const cublasLtMatmulAlgo_t *algo,
               Field *f)
{
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(context->blas, c->desc, c->x, c->y, added_of(c), c->d, algo,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= BLAS_SCRATCH)
        field_add(f, algo);
}

/* Small ones: of larger ones some are as fast alone, and slower within a step. */
static void add_clusters(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f)
{
    static const uint16_t shape[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                     CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_2x2x1};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, CLUSTER_SHAPE_ID, shape[i])) field_try(q->context, c, &algo, f);
    }
}

/* All forms of an algorithm that has but a few tiles, and one way to stage them. */
static void add_forms(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f)
{
    uint32_t tile[MAX_TILES + 1], stages[2];
    size_t tiles = 0, ways = 0, got;
    int32_t options = 0;
#define CAP(name, at, bytes, out)                                                                  \
    (cublasLtMatmulAlgoCapGetAttribute(of, CUBLASLT_ALGO_CAP_##name, at, bytes, out) ==            \
     CUBLAS_STATUS_SUCCESS)
    if (!CAP(TILE_IDS, NULL, 0, &tiles) || tiles > sizeof tile - sizeof *tile) return;
    if (!CAP(STAGES_IDS, NULL, 0, &ways) || ways != sizeof *stages) return;
    if (!CAP(TILE_IDS, tile, tiles, &got) || !CAP(STAGES_IDS, stages, ways, &got)) return;
    if (!CAP(CUSTOM_OPTION_MAX, &options, sizeof options, &got)) return;
#undef CAP
    for (size_t i = 0; i < tiles / sizeof *tile; i++)
        for (uint32_t option = 0; option <= (uint32_t)options; option++) {
            cublasLtMatmulAlgo_t algo = *of;
            if (ALGO_SET(&algo, TILE_ID, tile[i]) && ALGO_SET(&algo, STAGES_ID, stages[0]) &&
                ALGO_SET(&algo, CUSTOM_OPTION, option))
                add_clusters(q, c, &algo, f);
        }
}

void field_forms(DeviceQueue *q, const Choice *c, Field *f)
{
    cublasLtMatmulAlgo_t plain[MAX_IDS];
    const int n = plain_algorithms(q, c, plain);
    for (int i = 0; i < n; i++) add_forms(q, c, &plain[i], f);
}

void field_variants(DeviceQueue *q, const Choice *c, const cublasLtMatmulAlgo_t *of, Field *f)
{
    for (uint32_t on = 0; on < 2; on++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, CTA_SWIZZLING, on)) field_try(q->context, c, &algo, f);
    }
    add_clusters(q, c, of, f);
}
