/* published_shapes.c -- shapes of layers, and their factors. */
#include "support/published_shapes.h"

#include <math.h>
#include <string.h>

#include "support/least_squares.h"

static const double shape_sigma = 0.1; /* of the logarithm of a factor */
static const double row_sigma = 0.05;  /* of the logarithm of a measured time */

static LayerShape shape_of(const RowRecord *r)
{
    const JobSettings *job = &r->plan.job;
    return (LayerShape){.set = r->set,
                        .tp = job->parallel.mesh.tp,
                        .width = r->plan.model.width,
                        .sequences = job->batch.sequences,
                        .tokens = r->plan.model.max_positions,
                        .factor = 1};
}

static bool is_shape(const LayerShape *a, const LayerShape *b)
{
    return a->set == b->set && a->tp == b->tp && a->width == b->width &&
           a->sequences == b->sequences && a->tokens == b->tokens;
}

Err published_shapes(PublishedRows *p)
{
    for (int i = 0; i < p->n_rows; i++) {
        RowRecord *r = &p->row[i];
        if (r->skip) continue;
        const LayerShape s = shape_of(r);
        int k = 0;
        while (k < p->n_shapes && !is_shape(&p->shape[k], &s)) k++;
        if (k == MAX_SHAPES) return err_fail(ERR_CONFIG, "more than %d shapes", MAX_SHAPES);
        if (k == p->n_shapes) p->shape[p->n_shapes++] = s;
        r->shape_at = &p->shape[k];
    }
    return OK;
}

typedef struct {
    PublishedRows *rows;
    LayerShape *shape;
} ShapeFit;

static bool belongs(const ShapeFit *f, const RowRecord *r)
{
    return !r->skip && r->fitted && r->shape_at == f->shape;
}

static Err residuals(void *context, const double *x, double *out)
{
    ShapeFit *f = context;
    int n = 0;
    f->shape->factor = exp(x[0]);
    f->rows->stamp++;
    for (int i = 0; i < f->rows->n_rows; i++) {
        RowRecord *r = &f->rows->row[i];
        if (!belongs(f, r)) continue;
        TRY(rows_predict(f->rows, i));
        out[n++] = damped_residual(log(r->seconds / r->plan.step_s), row_sigma);
    }
    return OK;
}

Err published_fit_shapes(PublishedRows *p, int rounds)
{
    for (int k = 0; k < p->n_shapes; k++) p->shape[k].factor = 1;
    for (int k = 0; k < p->n_shapes; k++) {
        ShapeFit f = {.rows = p, .shape = &p->shape[k]};
        LeastSquares q = {.residuals = residuals,
                          .context = &f,
                          .most_rounds = rounds,
                          .n_unknowns = 1,
                          .sigma = {shape_sigma}};
        double x[MAX_UNKNOWNS] = {0}, sum;
        for (int i = 0; i < p->n_rows; i++) q.n_residuals += belongs(&f, &p->row[i]);
        if (q.n_residuals == 0) continue;
        TRY(least_squares(&q, p->keep, x, &sum));
        f.shape->factor = exp(x[0]);
    }
    return OK;
}
