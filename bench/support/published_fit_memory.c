/* published_fit_memory.c -- unknowns of a stack, and their least squares. */
#include "support/published_fit_memory.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "support/csv.h"
#include "support/least_squares.h"

#define AT(member) offsetof(StackRow, member)
static const struct {
    const char *column;
    size_t at;
    double unit, sigma; /* of its logarithm */
} number[] = {{"kept", AT(kept), 1, 0.1},
              {"logit_bytes", AT(logit_bytes), 1, 0.4},
              {"reserve_gib", AT(reserve_bytes), 0x1p30, 0.5},
              {"gathered", AT(gathered), 1, 0.1},
              {"weight_bytes", AT(weight_bytes), 1, 0.1}};
enum { N_NUMBERS = sizeof number / sizeof *number };

static const double peak_sigma = 0.02; /* of the logarithm of a measured peak */
static const double scatter = 0.06;   /* of the logarithm of the memory of a run that is labelled */
static const double own_fate = 0.005; /* share of runs that end otherwise for another reason */

typedef struct {
    PublishedRows *rows;
    const char *source;
    int n, which[N_NUMBERS]; /* those that the source has a prior for */
} MemoryFit;

static bool belongs(const MemoryFit *f, const RowRecord *r)
{
    return r->fitted && r->needed_bytes > 0 && strcmp(r->source, f->source) == 0;
}

static bool has_peak(const RowRecord *r)
{
    return r->memory_bytes > 0 && r->stack->peak && !r->skip;
}

static void set_numbers(const MemoryFit *f, const double *x)
{
    StackTable *t = &f->rows->stacks;
    for (int i = 0; i < t->n; i++)
        for (int j = 0; j < f->n && strcmp(t->row[i].source, f->source) == 0; j++) {
            const int k = f->which[j];
            *(double *)((char *)&t->row[i] + number[k].at) = exp(x[j]) * number[k].unit;
        }
}

/* The root of twice the negative logarithm of the probability of what happened. */
static double surprise(const RowRecord *r, double needed)
{
    const double z = log(needed / r->stack->capacity_bytes) / scatter;
    const double fails = own_fate + (1 - 2 * own_fate) / (1 + exp(-z));
    return sqrt(-2 * log(r->oom == 1 ? fails : 1 - fails));
}

static Err residuals(void *context, const double *x, double *out)
{
    const MemoryFit *f = context;
    int n = 0;
    set_numbers(f, x);
    for (int i = 0; i < f->rows->n_rows; i++) {
        const RowRecord *r = &f->rows->row[i];
        if (!belongs(f, r)) continue;
        const double needed = stack_bytes(r->stack, &r->shape);
        if (has_peak(r)) out[n++] = log(needed / r->memory_bytes) / peak_sigma;
        if (r->oom >= 0 && !has_peak(r)) out[n++] = surprise(r, needed);
    }
    return OK;
}

static Err fit_source(PublishedRows *p, const CsvTable *priors, int row, int rounds)
{
    MemoryFit f = {.rows = p, .source = csv_text(priors, row, "source")};
    LeastSquares q = {.residuals = residuals, .context = &f, .most_rounds = rounds};
    double x[MAX_UNKNOWNS], sum;
    for (int k = 0; k < N_NUMBERS; k++) {
        const double prior = csv_number(priors, row, number[k].column, 0);
        if (prior <= 0) continue;
        q.prior[f.n] = x[f.n] = log(prior);
        q.sigma[f.n] =
            k == 0 ? csv_number(priors, row, "kept_sigma", number[k].sigma) : number[k].sigma;
        f.which[f.n++] = k;
    }
    if (f.n == 0)
        return err_fail(ERR_CONFIG, "bench/priors/stacks.csv: row %d: no number", row + 2);
    q.n_unknowns = f.n;
    for (int i = 0; i < p->n_rows; i++) {
        const RowRecord *r = &p->row[i];
        q.n_residuals += belongs(&f, r) && (has_peak(r) || r->oom >= 0);
    }
    if (q.n_residuals == 0) return OK;
    TRY(least_squares(&q, p->keep, x, &sum));
    set_numbers(&f, x);
    return OK;
}

Err published_fit_memory(PublishedRows *p, int rounds)
{
    CsvTable priors;
    TRY(csv_read("bench/priors/stacks.csv", p->keep, &priors));
    for (int i = 0; i < priors.n_rows; i++) TRY(fit_source(p, &priors, i, rounds));
    return OK;
}
