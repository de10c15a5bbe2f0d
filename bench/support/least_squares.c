/* least_squares.c -- damped normal equations, solved by elimination. */
#include "support/least_squares.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

double damped_residual(double error, double sigma)
{
    const double e = error / sigma;
    return e / sqrt(1 + fabs(e));
}

/* Solves a symmetric positive definite system in place. */
static void solve(int n, double a[MAX_UNKNOWNS][MAX_UNKNOWNS], double *b)
{
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            const double f = a[j][i] / a[i][i];
            for (int k = i; k < n; k++) a[j][k] -= f * a[i][k];
            b[j] -= f * b[i];
        }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++) b[i] -= a[i][k] * b[k];
        b[i] /= a[i][i];
    }
}

static double total(const LeastSquares *q, const double *x, const double *r)
{
    double sum = 0;
    for (int i = 0; i < q->n_residuals; i++) sum += r[i] * r[i];
    for (int j = 0; j < q->n_unknowns; j++) sum += pow((x[j] - q->prior[j]) / q->sigma[j], 2);
    return sum;
}

typedef struct {
    double *r, *moved, *slope; /* [residuals], [residuals], [unknowns][residuals] */
} Workspace;

static Err find_slopes(const LeastSquares *q, const Workspace *w, const double *x)
{
    const double by = 1e-3;
    double y[MAX_UNKNOWNS];
    for (int j = 0; j < q->n_unknowns; j++) {
        memcpy(y, x, sizeof y);
        y[j] += by;
        TRY(q->residuals(q->context, y, w->moved));
        for (int i = 0; i < q->n_residuals; i++)
            w->slope[(int64_t)j * q->n_residuals + i] = (w->moved[i] - w->r[i]) / by;
    }
    return OK;
}

/* The step from x with this damping. */
static void find_step(const LeastSquares *q, const Workspace *w, const double *x, double damping,
                      double *step)
{
    double a[MAX_UNKNOWNS][MAX_UNKNOWNS];
    const int n = q->n_residuals;
    for (int j = 0; j < q->n_unknowns; j++) {
        const double *s = &w->slope[(int64_t)j * n], weight = 1 / (q->sigma[j] * q->sigma[j]);
        step[j] = -weight * (x[j] - q->prior[j]);
        for (int i = 0; i < n; i++) step[j] -= s[i] * w->r[i];
        for (int k = 0; k < q->n_unknowns; k++) {
            a[j][k] = 0;
            for (int i = 0; i < n; i++) a[j][k] += s[i] * w->slope[(int64_t)k * n + i];
        }
        a[j][j] = (a[j][j] + weight) * (1 + damping);
    }
    solve(q->n_unknowns, a, step);
}

Err least_squares(const LeastSquares *q, Arena *arena, double *x, double *sum)
{
    Workspace w;
    double step[MAX_UNKNOWNS], y[MAX_UNKNOWNS], damping = 1e-2;
    TRY(ARENA_NEW(arena, q->n_residuals, &w.r));
    TRY(ARENA_NEW(arena, q->n_residuals, &w.moved));
    TRY(ARENA_NEW(arena, (int64_t)q->n_residuals * q->n_unknowns, &w.slope));
    TRY(q->residuals(q->context, x, w.r));
    *sum = total(q, x, w.r);
    for (int round = 0; round < q->most_rounds; round++) {
        const double before = *sum;
        TRY(find_slopes(q, &w, x));
        for (int tries = 0; tries < 6; tries++, damping *= 6) {
            find_step(q, &w, x, damping, step);
            for (int j = 0; j < q->n_unknowns; j++) y[j] = x[j] + fmax(-1, fmin(1, step[j]));
            TRY(q->residuals(q->context, y, w.moved));
            if (total(q, y, w.moved) >= *sum) continue;
            *sum = total(q, y, w.moved);
            memcpy(x, y, (size_t)q->n_unknowns * sizeof *x);
            memcpy(w.r, w.moved, (size_t)q->n_residuals * sizeof *w.r);
            damping /= 10;
            break;
        }
        if (*sum > before * (1 - 1e-4)) break;
    }
    return OK;
}
