/* autotune_tiles.c -- candidates with tiles that fill the last wave of SMs.
 *
 * An SM computes one tile of the output at a time, so a GEMM runs in waves:
 *
 *     [0][1][2][3]
 *     [4][5][6][7]     ten tiles on four SMs: three waves, the last one half empty
 *     [8][9]
 *
 * A partial wave takes about as long as a full one. A slightly larger or smaller tile may fill the
 * last wave. cuBLASLt has a tile of nearly every size but suggests few of them. The tiles with the
 * least estimated cost are added to the candidates, with all options that can run. */
#include "device/cuda/gemm/autotune.h"

#include <stdlib.h>

typedef struct {
    uint32_t id;
    int rows, columns;
    double cost;
} LtTile;

/* Earlier versions have few of these sizes; their suggestions are all candidates. */
#if CUBLAS_VERSION >= 130000
/* clang-format off */
#define TILE(m, n) {CUBLASLT_MATMUL_TILE_##m##x##n, m, n, 0}
#define BOTH(m, n) TILE(m, n), TILE(n, m)
static const LtTile all_tiles[] = {
    TILE(128, 128), TILE(192, 192),
    BOTH(128, 112), BOTH(128, 120), BOTH(128, 136), BOTH(128, 144), BOTH(128, 152), BOTH(128, 160),
    BOTH(128, 168), BOTH(128, 176), BOTH(128, 184), BOTH(128, 192), BOTH(128, 200), BOTH(128, 208),
    BOTH(128, 216), BOTH(128, 224), BOTH(128, 232), BOTH(128, 240), BOTH(128, 248), BOTH(128, 256),
    BOTH(128, 264), BOTH(128, 272), BOTH(128, 280), BOTH(128, 288), BOTH(128, 296), BOTH(128, 304),
    BOTH(128, 312), BOTH(128, 320), BOTH(128, 328), BOTH(128, 336), BOTH(128, 344), BOTH(128, 352),
    BOTH(256, 64), BOTH(256, 72), BOTH(256, 80), BOTH(256, 88), BOTH(256, 96), BOTH(256, 104),
    BOTH(256, 112), BOTH(256, 120), BOTH(256, 136), BOTH(256, 144), BOTH(256, 152), BOTH(256, 160),
    BOTH(256, 168), BOTH(256, 176),
};
/* clang-format on */
enum { N_TILES = sizeof all_tiles / sizeof *all_tiles };
#else
static const LtTile all_tiles[1];
enum { N_TILES = 0 };
#endif

enum { MAX_TILE_CANDIDATES = 12, MAX_OPTIONS = 8, MAX_IDS = 1024 };
#define OPERAND_COST 8.0 /* of loading one row or column of operands, in output elements */

static int64_t tiles_along(int64_t n, int64_t of) { return (n + of - 1) / of; }

/* Estimated cost in output elements per SM. */
static double cost_of(const LtTile *t, const LtShape *s, int sms)
{
    const double waves = (double)tiles_along(
        tiles_along(s->rows, t->rows) * tiles_along(s->columns, t->columns), sms);
    const double area = (double)t->rows * t->columns;
    return waves * (area + OPERAND_COST * (t->rows + t->columns));
}

static int cheaper(const void *a, const void *b)
{
    const LtTile *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Adds every option of an algorithm with its tile, for single blocks and clusters of two. */
static void add_tile(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                     Candidates *f)
{
    static const uint16_t cluster[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                       CUBLASLT_CLUSTER_SHAPE_1x2x1};
    for (uint32_t option = 0; option < MAX_OPTIONS; option++)
        for (size_t i = 0; i < sizeof cluster / sizeof *cluster; i++) {
            cublasLtMatmulAlgo_t algo = *of;
            if (ALGO_SET(&algo, CUSTOM_OPTION, option) &&
                ALGO_SET(&algo, CLUSTER_SHAPE_ID, cluster[i]))
                candidates_check(q->context, c, &algo, f);
        }
}

void candidates_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                      Candidates *f)
{
    LtTile tile[N_TILES + 1];
    const int32_t whole = 1;
    for (int i = 0; i < N_TILES; i++) {
        tile[i] = all_tiles[i];
        tile[i].cost = cost_of(&tile[i], &c->shape, q->context->sms);
    }
    qsort(tile, N_TILES, sizeof *tile, cheaper);
    for (int i = 0; i < MAX_TILE_CANDIDATES && i < N_TILES; i++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, TILE_ID, tile[i].id) && ALGO_SET(&algo, SPLITK_NUM, whole))
            add_tile(q, c, &algo, f);
    }
}

void candidates_all_tiles(DeviceQueue *q, const GemmEntry *c, const cublasLtMatmulAlgo_t *of,
                          Candidates *f)
{
    uint32_t id[MAX_IDS];
    size_t bytes = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(of, CUBLASLT_ALGO_CAP_TILE_IDS, id, sizeof id, &bytes) !=
        CUBLAS_STATUS_SUCCESS)
        return;
    for (size_t i = 0; i < bytes / sizeof *id; i++) {
        cublasLtMatmulAlgo_t algo = *of;
        if (ALGO_SET(&algo, TILE_ID, id[i])) add_tile(q, c, &algo, f);
    }
}
