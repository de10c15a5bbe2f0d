/* published_fit.c -- unknowns of a cluster, and their least squares. */
#include "support/published_fit.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "plan/cluster/cluster.h"
#include "support/least_squares.h"
#include "support/published_fit_memory.h"
#include "support/published_shapes.h"

/* A constant of a cluster. It is fitted unless its prior is 0; sigma is of its logarithm: small for
 * vendor figures, larger for what depends on software. */
typedef struct {
    size_t at;
    double sigma;
} FitConstant;

#define AT(member) offsetof(Cluster, member)
static const FitConstant constants[] = {{AT(rates.flops_per_s[WORK_GEMM][BF16]), 0.3},
                                        {AT(rates.flops_per_s[WORK_ATTENTION][BF16]), 0.5},
                                        {AT(rates.pair_bytes), 0.5},
                                        {AT(rates.logit_bytes), 0.5},
                                        {AT(rates.memory_Bps), 0.4},
                                        {AT(rates.launch_s), 0.7},
                                        {AT(host_launch_s), 0.7},
                                        {AT(host_member_s), 0.7},
                                        {AT(rates.tiles.fill_k), 0.7},
                                        {AT(rates.tiles.boost), 0.1},
                                        {AT(rates.level[0].Bps), 0.3},
                                        {AT(rates.level[0].latency_s), 0.7},
                                        {AT(rates.level[1].Bps), 0.3},
                                        {AT(rates.level[1].latency_s), 0.7},
                                        {AT(rates.level[0].pair_Bps), 0.5},
                                        {AT(rates.level[0].pair_latency_s), 0.7},
                                        {AT(rates.level[1].pair_Bps), 0.5},
                                        {AT(rates.level[1].pair_latency_s), 0.7}};
enum { N_CONSTANTS = sizeof constants / sizeof *constants };

static const double time_sigma = 0.1; /* of the time factor of a source that shares a cluster */
static const double row_sigma = 0.05; /* of the logarithm of a measured time */

typedef struct {
    PublishedRows *rows;
    int set, n, n_stacks;
    int which[N_CONSTANTS];
    StackRow *stack[MAX_UNKNOWNS - N_CONSTANTS];
} FitSet;

static double *field(Cluster *c, int i) { return (double *)((char *)c + constants[i].at); }

static bool belongs(const FitSet *f, const RowRecord *r)
{
    return !r->skip && r->set == f->set && r->fitted;
}

static Err residuals(void *context, const double *x, double *out)
{
    FitSet *f = context;
    PublishedRows *p = f->rows;
    int n = 0;
    for (int j = 0; j < f->n; j++) *field(&p->set[f->set].cluster, f->which[j]) = exp(x[j]);
    for (int j = 0; j < f->n_stacks; j++) f->stack[j]->time = exp(x[f->n + j]);
    p->stamp++;
    for (int i = 0; i < p->n_rows; i++) {
        RowRecord *r = &p->row[i];
        if (!belongs(f, r)) continue;
        TRY(rows_predict(p, i));
        out[n++] = damped_residual(log(r->seconds / r->plan.step_s), row_sigma);
    }
    return OK;
}

static void add_stack(FitSet *f, StackRow *stack)
{
    int k = 0;
    while (k < f->n_stacks && f->stack[k] != stack) k++;
    if (stack && k == f->n_stacks && k < MAX_UNKNOWNS - N_CONSTANTS)
        f->stack[f->n_stacks++] = stack;
}

/* Compiles the rows that the set is fitted on; those that cannot be are skips from then on. */
static Err open_set(FitSet *f, LeastSquares *q)
{
    PublishedRows *p = f->rows;
    for (int i = 0; i < p->n_rows; i++) {
        if (!belongs(f, &p->row[i])) continue;
        TRY(rows_predict(p, i));
        if (p->row[i].skip) continue;
        q->n_residuals++;
        add_stack(f, p->row[i].stack);
    }
    if (f->n_stacks == 1) f->n_stacks = 0; /* rates of its own cluster are factor enough */
    for (int i = 0; i < N_CONSTANTS; i++) {
        const double value = *field(&p->set[f->set].cluster, i);
        if (value <= 0) continue;
        q->prior[f->n] = log(value);
        q->sigma[f->n] = constants[i].sigma;
        f->which[f->n++] = i;
    }
    for (int i = 0; i < f->n_stacks; i++) q->sigma[f->n + i] = time_sigma; /* prior: log 1 */
    q->n_unknowns = f->n + f->n_stacks;
    return OK;
}

Err published_fit(PublishedRows *p, int rounds)
{
    for (int set = 0; set < p->n_sets; set++) {
        FitSet f = {.rows = p, .set = set};
        LeastSquares q = {.residuals = residuals, .context = &f, .most_rounds = rounds};
        double x[MAX_UNKNOWNS], sum, *r;
        if (!p->set[set].fits) continue;
        TRY(open_set(&f, &q));
        if (q.n_residuals == 0) continue;
        memcpy(x, q.prior, sizeof x);
        TRY(least_squares(&q, p->keep, x, &sum));
        TRY(ARENA_NEW(p->keep, q.n_residuals, &r));
        TRY(residuals(&f, x, r)); /* leaves the solution in the clusters */
    }
    return OK;
}

/* From the priors, fits on the rows of all other folds, and predicts those of this one. */
static Err predict_fold(PublishedRows *p, const StackTable *read, int rounds, int fold, int folds)
{
    for (int i = 0; i < p->n_sets; i++) p->set[i].cluster = p->set[i].prior;
    p->stacks = *read; /* also the memory of sources that no row of the other folds is of */
    for (int i = 0; i < p->stacks.n; i++) p->stacks.row[i].time = 1;
    for (int i = 0; i < p->n_rows; i++)
        p->row[i].fitted = p->row[i].dealt && p->row[i].fold % folds != fold;
    for (int i = 0; i < p->n_shapes; i++) p->shape[i].factor = 1;
    TRY(published_fit(p, rounds));
    TRY(published_fit_shapes(p, rounds));
    TRY(published_fit_memory(p, rounds));
    p->stamp++;
    for (int i = 0; i < p->n_rows; i++) {
        RowRecord *r = &p->row[i];
        if (!r->dealt || r->fitted) continue;
        rows_predict_memory(r);
        if (r->skip) continue;
        TRY(rows_predict(p, i));
        r->held_seconds = r->seconds;
        r->held_time = r->time;
    }
    return OK;
}

Err published_folds(PublishedRows *p, int rounds, int folds)
{
    const StackTable read = p->stacks;
    for (int fold = 0; fold < folds; fold++) TRY(predict_fold(p, &read, rounds, fold, folds));
    for (int i = 0; i < p->n_rows; i++) { /* later fits have predicted the row again */
        p->row[i].seconds = p->row[i].held_seconds;
        p->row[i].time = p->row[i].held_time;
    }
    return OK;
}

static Err write_text(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        return err_fail(ERR_IO, "%s: cannot be written", path);
    return OK;
}

Err published_write(const PublishedRows *p, const char *folder)
{
    const char *text;
    for (int i = 0; i < p->n_sets; i++) {
        char name[80];
        if (!p->set[i].fits) continue;
        Text t = text_in(p->keep);
        cluster_text(&p->set[i].cluster, &t);
        TRY(text_done(&t, &text));
        snprintf(name, sizeof name, "%s.yaml", p->set[i].file);
        TRY(write_text(folder, name, text));
    }
    Text t = text_in(p->keep);
    text_add(&t, "source,gpu,cluster,time,weight_bytes,kept,logit_bytes,reserve_gib,gathered\n");
    for (int i = 0; i < p->stacks.n; i++) {
        const StackRow *s = &p->stacks.row[i];
        text_add(&t, "%s,%s,%s,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g\n", s->source, s->gpu, s->cluster,
                 s->time, s->weight_bytes, s->kept, s->logit_bytes, s->reserve_bytes / 0x1p30,
                 s->gathered);
    }
    TRY(text_done(&t, &text));
    return write_text(folder, "fitted.csv", text);
}
