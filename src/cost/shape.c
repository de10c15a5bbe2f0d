/* shape.c -- the rate of a kernel by shape: tiles and waves of GEMMs, grids and curves.
 *
 * A GEMM of m x n outputs is computed in tiles, one per unit and wave. Tiles at the border are
 * computed whole, and so is the last wave:
 *
 *     m = 300, tile 128          3 rows of tiles: the flops of 384 rows
 *     120 tiles on 108 units     2 waves: the flops of 216 tiles
 *
 * A library chooses among tiles and may split k over units, so that a GEMM with few tiles uses more
 * of them; the fastest choice counts. Smaller tiles load more operands for each flop. */
#include <math.h>

#include "cost/cost.h"

/* Parts of k are added up through memory. */
#define SPLIT_SHARE 0.9

/* GEMMs of one call: how many, and their extents. */
typedef struct {
    double count, m, n, k;
} GemmBatch;

/* The flops of tiles of this size, over those of the GEMMs. */
static double waste_of(const CostTiles *t, double tm, double tn, double split, const GemmBatch *g)
{
    const double tiles = g->count * ceil(g->m / tm) * ceil(g->n / tn) * split;
    const double waves = ceil(tiles / t->units);
    return waves * t->units * tm * tn * (g->k / split + t->fill_k) /
           (g->count * g->m * g->n * g->k);
}

double cost_tile_waste(const CostTiles *t, double experts, double m, double n, double k)
{
    /* Parts of a tile and their share of the rate: operands are read 1/tm + 1/tn times a flop. */
    static const struct {
        double m, n, share;
    } size[] = {{1, 1, 1}, {0.5, 1, 0.95}, {0.5, 0.5, 0.85}, {0.25, 0.5, 0.7}};
    const GemmBatch g = {experts > 0 ? experts : 1, m, n, k};
    double least = (double)INFINITY;
    if (t->units == 0 || m <= 0 || n <= 0 || k <= 0) return 1;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        for (double split = 1; split <= 8; split *= 2) {
            const double share = size[i].share * (split > 1 ? SPLIT_SHARE : 1);
            const double waste = waste_of(t, t->m * size[i].m, t->n * size[i].n, split, &g);
            if (waste / share < least) least = waste / share;
        }
    return least;
}

/* The interval of x and the weight of its upper end, in log space. */
static int locate(const double *at, int n, double x, double *weight)
{
    int i = 0;
    *weight = 0;
    if (n == 1 || x <= at[0]) return 0;
    while (i < n - 2 && x >= at[i + 1]) i++;
    *weight = x >= at[i + 1] ? 1 : log(x / at[i]) / log(at[i + 1] / at[i]);
    return i;
}

double cost_curve_at(const CostCurve *c, double x)
{
    double w;
    const int i = locate(c->x, c->n, x, &w);
    if (w <= 0 || w >= 1) return c->y[i + (w > 0)];
    return exp((1 - w) * log(c->y[i]) + w * log(c->y[i + 1]));
}

/* A measured rate counts the flops of the GEMM; this one counts those of whole tiles. */
static double rate_at(const CostGrid *g, const CostTiles *t, const int i[3])
{
    const double rate = g->rate[(i[0] * g->n_n + i[1]) * g->n_k + i[2]];
    return rate * cost_tile_waste(t, 1, g->m[i[0]], g->n[i[1]], g->k[i[2]]);
}

double cost_grid_at(const CostGrid *g, const CostTiles *t, double m, double n, double k)
{
    double w[3], sum = 0;
    const int at[] = {locate(g->m, g->n_m, m, &w[0]), locate(g->n, g->n_n, n, &w[1]),
                      locate(g->k, g->n_k, k, &w[2])};
    for (int corner = 0; corner < 8; corner++) {
        double weight = 1;
        int i[3];
        for (int a = 0; a < 3; a++) {
            const int up = corner >> a & 1;
            weight *= up ? w[a] : 1 - w[a];
            i[a] = at[a] + up;
        }
        if (weight > 0) sum += weight * log(rate_at(g, t, i));
    }
    return exp(sum);
}

double cost_grid_most(const CostGrid *g, const CostTiles *t)
{
    double most = 0;
    for (int i = 0; i < g->n_m; i++)
        for (int j = 0; j < g->n_n; j++)
            for (int l = 0; l < g->n_k; l++) most = fmax(most, rate_at(g, t, (int[]){i, j, l}));
    return most;
}
