/* autotune_candidates.c -- the algorithms that can run a GEMM.
 *
 * cuBLASLt's heuristic suggests a handful, its favourite first. Further queries and checks find
 * more:
 *
 *     without workspace      excludes split-K algorithms
 *     for each algorithm     the best configurations of every algorithm, not only of the favourites
 *     every configuration    of algorithms that have few; with a gelu the heuristic suggests few
 *     other groupings        other cluster shapes, or CTA swizzling
 *     other tiles            tiles that fill the SMs (autotune_tiles.c)
 *
 * Candidates of the last three kinds pass cublasLtMatmulAlgoCheck before they are timed. No
 * candidate changes the numerics: accumulation is f32, also between the parts of a split K. Split K
 * is as suggested, or off with other tiles. */
#include "device/cuda/gemm/autotune.h"

#include <string.h>

enum { MAX_SUGGESTED = 24, MAX_IDS = 32, MAX_CONFIG_TILES = 16 };

static void candidates_add(Candidates *f, const cublasLtMatmulAlgo_t *algo)
{
    for (int i = 0; i < f->n; i++)
        if (memcmp(&f->algo[i], algo, sizeof *algo) == 0) return;
    if (f->n < MAX_CANDIDATES) f->algo[f->n++] = *algo;
}

/* The conditions of a query of the heuristic. */
typedef struct {
    size_t workspace_bytes;
    uint32_t mode, reductions; /* how the parts of a split K may be summed */
} HeuristicQuery;

/* No query admits partial sums that are rounded to the output type. */
static const HeuristicQuery default_query = {BLAS_SCRATCH, CUBLASLT_SEARCH_BEST_FIT,
                                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
static const HeuristicQuery no_workspace_query = {0, CUBLASLT_SEARCH_BEST_FIT,
                                                  CUBLASLT_REDUCTION_SCHEME_NONE};
static const HeuristicQuery by_id_query = {BLAS_SCRATCH, CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID,
                                           CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};

static cublasStatus_t make_preference(const LtShape *s, HeuristicQuery w,
                                      cublasLtMatmulPreference_t *preference)
{
    const uint32_t x = (uint32_t)s->x_align, y = (uint32_t)s->y_align, d = (uint32_t)s->d_align;
    const uint32_t c = s->c_ld ? (uint32_t)s->c_align : d;
    const cublasStatus_t status = cublasLtMatmulPreferenceCreate(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
#define SET(name, value)                                                                           \
    (void)cublasLtMatmulPreferenceSetAttribute(*preference, CUBLASLT_MATMUL_PREF_##name, &(value), \
                                               sizeof(value))
    SET(SEARCH_MODE, w.mode);
    SET(MAX_WORKSPACE_BYTES, w.workspace_bytes);
    SET(REDUCTION_SCHEME_MASK, w.reductions);
    SET(MIN_ALIGNMENT_A_BYTES, x);
    SET(MIN_ALIGNMENT_B_BYTES, y);
    SET(MIN_ALIGNMENT_C_BYTES, c);
    SET(MIN_ALIGNMENT_D_BYTES, d);
#undef SET
    return CUBLAS_STATUS_SUCCESS;
}

/* Runs one query. If the mode is SEARCH_LIMITED_BY_ALGO_ID, result[0] names the algorithm on
 * entry. */
static cublasStatus_t run_query(DeviceQueue *q, const GemmEntry *c, HeuristicQuery w,
                                cublasLtMatmulHeuristicResult_t *result, int *n)
{
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = make_preference(&c->shape, w, &preference);
    const int cap = *n;
    *n = 0;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = cublasLtMatmulAlgoGetHeuristic(q->context->blas, c->desc, c->x, c->y, c_layout_of(c),
                                            c->d, preference, cap, result, n);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) *n = 0;
    return status;
}

static void add_results(Candidates *f, const cublasLtMatmulHeuristicResult_t *result, int n)
{
    for (int i = 0; i < n; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS && result[i].workspaceSize <= BLAS_SCRATCH)
            candidates_add(f, &result[i].algo);
}

Err candidates_suggested(DeviceQueue *q, const GemmEntry *c, int limit, Candidates *f)
{
    cublasLtMatmulHeuristicResult_t result[MAX_SUGGESTED];
    int n = limit < MAX_SUGGESTED ? limit : MAX_SUGGESTED;
    const cublasStatus_t status = run_query(q, c, default_query, result, &n);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) BLAS_TRY(status);
    add_results(f, result, n);
    return OK;
}

/* The algorithms of cuBLASLt for these types, initialized but not configured. */
static int base_algorithms(DeviceQueue *q, const GemmEntry *c, cublasLtMatmulAlgo_t algo[MAX_IDS])
{
    const cudaDataType_t x = lt_x_type(c->shape.type), y = lt_type(c->shape.type),
                         out = lt_type(c->shape.out_type);
    int id[MAX_IDS], n_ids = 0, n = 0;
    if (cublasLtMatmulAlgoGetIds(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, x, y, out, out,
                                 MAX_IDS, id, &n_ids) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n_ids; i++)
        n += cublasLtMatmulAlgoInit(q->context->blas, CUBLAS_COMPUTE_32F, CUDA_R_32F, x, y, out,
                                    out, id[i], &algo[n]) == CUBLAS_STATUS_SUCCESS;
    return n;
}

void candidates_more(DeviceQueue *q, const GemmEntry *c, Candidates *f)
{
    cublasLtMatmulHeuristicResult_t result[MAX_SUGGESTED];
    cublasLtMatmulAlgo_t base[MAX_IDS];
    const int n_base = base_algorithms(q, c, base);
    int n = MAX_SUGGESTED;
    (void)run_query(q, c, no_workspace_query, result, &n);
    add_results(f, result, n);
    for (int i = 0; i < n_base; i++) {
        n = MAX_SUGGESTED;
        memset(result, 0, sizeof result);
        result[0].algo = base[i];
        (void)run_query(q, c, by_id_query, result, &n);
        add_results(f, result, n);
    }
}

void candidates_check(const DeviceContext *context, const GemmEntry *c,
                      const cublasLtMatmulAlgo_t *algo, Candidates *f)
{
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(context->blas, c->desc, c->x, c->y, c_layout_of(c), c->d, algo,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= BLAS_SCRATCH)
        candidates_add(f, algo);
}

/* Adds small cluster shapes. Some larger ones are as fast alone but slower inside a step. */
static void add_clusters(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                         Candidates *f)
{
    static const uint16_t shape[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                     CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_CLUSTER_SHAPE_2x2x1};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, CLUSTER_SHAPE_ID, shape[i])) candidates_check(q->context, c, &algo, f);
    }
}

/* Adds all configurations of an algorithm that has few tiles and one stage count. */
static void add_configs(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                        Candidates *f)
{
    uint32_t tile[MAX_CONFIG_TILES + 1], stages[2];
    size_t tiles_bytes = 0, stages_bytes = 0, got;
    int32_t options = 0;
#define CAP(name, at, bytes, out)                                                                  \
    (cublasLtMatmulAlgoCapGetAttribute(of, CUBLASLT_ALGO_CAP_##name, at, bytes, out) ==            \
     CUBLAS_STATUS_SUCCESS)
    if (!CAP(TILE_IDS, NULL, 0, &tiles_bytes) || tiles_bytes > sizeof tile - sizeof *tile) return;
    if (!CAP(STAGES_IDS, NULL, 0, &stages_bytes) || stages_bytes != sizeof *stages) return;
    if (!CAP(TILE_IDS, tile, tiles_bytes, &got) || !CAP(STAGES_IDS, stages, stages_bytes, &got))
        return;
    if (!CAP(CUSTOM_OPTION_MAX, &options, sizeof options, &got)) return;
#undef CAP
    for (size_t i = 0; i < tiles_bytes / sizeof *tile; i++)
        for (uint32_t option = 0; option <= (uint32_t)options; option++) {
            cublasLtMatmulAlgo_t algo = *of;
            if (ALGO_SET(&algo, TILE_ID, tile[i]) && ALGO_SET(&algo, STAGES_ID, stages[0]) &&
                ALGO_SET(&algo, CUSTOM_OPTION, option))
                add_clusters(q, c, &algo, f);
        }
}

void candidates_configs(DeviceQueue *q, const GemmEntry *c, Candidates *f)
{
    cublasLtMatmulAlgo_t base[MAX_IDS];
    const int n = base_algorithms(q, c, base);
    for (int i = 0; i < n; i++) add_configs(q, c, &base[i], f);
}

void candidates_variants(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                         Candidates *f)
{
    for (uint32_t on = 0; on < 2; on++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, CTA_SWIZZLING, on)) candidates_check(q->context, c, &algo, f);
    }
    add_clusters(q, c, of, f);
}
