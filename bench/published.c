/* published.c -- the predictions of `sheaf simulate --cluster` beside published measurements.
 *
 *     build/release/bench/published [-o predictions.csv] [--every N] [--held-out] TABLE.csv ...
 *     build/release/bench/published --fit [--write FOLDER] TABLE.csv ...
 *     build/release/bench/published --folds N TABLE.csv ...
 *     build/release/bench/published --regret --folds N TABLE.csv ...
 *
 * Each row is compiled as a plan and played on the cluster of its source (share/stacks.csv,
 * share/clusters), from the root of the repository. Prints a line for each source, then for each
 * release, GPU type and cluster, in percent:
 *
 *     SOURCE n=N skipped=K mape=X median=Y p90=Z bias=W       bias: mean of predicted - measured
 *
 * then memory, where a stack row has numbers for it, and the number of skipped rows by reason. Runs
 * that finished although their log has an error of memory (`recovered`) neither fit nor did not.
 * --every N reads every N-th row of a table.
 *
 * --fit starts from the physical values in bench/priors, fits the constants of each cluster on the
 * rows whose xxHash64(row_id, seed 0) mod 4 is 0, and reports all other rows; --write FOLDER writes
 * the fitted files. The files in share/clusters were fitted so. Without --fit nothing is fitted:
 * all rows are reported, and with --held-out those alone on which nothing was fitted.
 *
 * --folds N reports the quarter that constants are fitted on, and no other row: N times all but one
 * of N parts of it are fitted, and that part is predicted. A change of the model is judged so
 * without a look at the rows that test it.
 *
 * --regret prints for each source how much slower the row that is predicted the fastest of its
 * group measured than the fastest one (support/published_regret.h). With --folds N, N times all but
 * one of N parts of the groups are fitted, with factors for the shapes of layers
 * (support/published_shapes.h), and the groups of that part are predicted; --rates leaves the
 * factors out. With --fit constants are fitted on a quarter of the groups. Without either the rows
 * are those that the files in share/clusters were not fitted on, whose groups have other rows that
 * they were. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/published_fit.h"
#include "support/published_fit_memory.h"
#include "support/published_regret.h"
#include "support/published_shapes.h"

enum { MAX_REASONS = 256, MAX_GROUPS = 64, FIT_ROUNDS = 12 };

typedef struct {
    char text[160];
    int n;
} SkipReason;

typedef struct {
    Arena keep, clocks, temp;
    PublishedRows rows;
    double *error; /* [MAX_ROWS_READ]: of the group that is printed */
    int n_reasons;
    SkipReason reason[MAX_REASONS];
    const char *out, *write;
    int every, folds;
    bool fit, held_out, regret, rates;
} Harness;

static void count_reason(Harness *h, const char *text)
{
    int i = 0;
    while (i < h->n_reasons && strncmp(h->reason[i].text, text, sizeof h->reason[i].text - 1) != 0)
        i++;
    if (i == MAX_REASONS) return;
    if (i == h->n_reasons)
        snprintf(h->reason[h->n_reasons++].text, sizeof h->reason[i].text, "%s", text);
    h->reason[i].n++;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the errors in h->error, which have a sign. */
static void print_errors(Harness *h, int n)
{
    double sum = 0, bias = 0;
    for (int i = 0; i < n; i++) {
        bias += h->error[i];
        h->error[i] = fabs(h->error[i]);
        sum += h->error[i];
    }
    qsort(h->error, (size_t)n, sizeof *h->error, by_value);
    if (n > 0)
        printf(" mape=%.1f median=%.1f p90=%.1f bias=%.1f", 100 * sum / n, 100 * h->error[n / 2],
               100 * h->error[n * 9 / 10], 100 * bias / n);
    printf("\n");
}

static bool is_reported(const Harness *h, const RowRecord *r)
{
    if (h->folds) return r->dealt;
    return !(h->held_out && r->quarter);
}

/* The rows that a line of the report sums up: of a source, a release of its software, a GPU type or
 * a cluster. */
typedef enum { OF_SOURCE, OF_RELEASE, OF_GPU, OF_CLUSTER } GroupKind;

static const char *group_name(const Harness *h, const RowRecord *r, GroupKind kind)
{
    if (kind == OF_SOURCE) return r->label;
    if (kind == OF_RELEASE) return r->release;
    if (r->skip) return ""; /* a skipped row may have neither */
    return kind == OF_GPU ? r->plan.gpu : h->rows.set[r->set].file;
}

static void print_group(Harness *h, const char *name, GroupKind kind)
{
    int n = 0, skipped = 0;
    for (int i = 0; i < h->rows.n_rows; i++) {
        const RowRecord *r = &h->rows.row[i];
        if (strcmp(group_name(h, r, kind), name) != 0) continue;
        skipped += r->skip != NULL;
        if (!r->skip && is_reported(h, r)) h->error[n++] = r->seconds / r->plan.step_s - 1;
    }
    printf("%s%s n=%d skipped=%d",
           kind == OF_CLUSTER   ? "cluster "
           : kind == OF_RELEASE ? "release "
                                : "",
           name, n, skipped);
    print_errors(h, n);
}

/* Memory of the rows of a source: fits or not, and the measured peak. */
static void print_memory(Harness *h, const char *source)
{
    int labelled = 0, right = 0, false_fits = 0, recovered = 0, n = 0;
    for (int i = 0; i < h->rows.n_rows; i++) {
        const RowRecord *r = &h->rows.row[i];
        if (strcmp(r->label, source) != 0 || r->needed_bytes <= 0 || !is_reported(h, r)) continue;
        recovered += r->recovered;
        if (r->oom >= 0) {
            const bool fits = stack_fits(r->stack, r->needed_bytes);
            labelled++;
            right += fits == (r->oom == 0);
            false_fits += fits && r->oom == 1;
        }
        if (r->memory_bytes > 0 && r->stack->peak && !r->skip)
            h->error[n++] = r->needed_bytes / r->memory_bytes - 1;
    }
    if (labelled > 0)
        printf("%s fits n=%d right=%.1f false_fits=%.2f recovered=%d\n", source, labelled,
               100.0 * right / labelled, 100.0 * false_fits / labelled, recovered);
    if (n == 0) return;
    printf("%s memory n=%d", source, n);
    print_errors(h, n);
}

/* True if the row is the first of its group. */
static bool opens_group(const Harness *h, int row, GroupKind kind)
{
    const char *name = group_name(h, &h->rows.row[row], kind);
    int i = 0;
    while (strcmp(group_name(h, &h->rows.row[i], kind), name) != 0) i++;
    return i == row && *name;
}

static void print_all(Harness *h)
{
    if (h->regret) published_regret(&h->rows);
    for (GroupKind kind = OF_SOURCE; kind <= OF_CLUSTER; kind++)
        for (int i = 0; i < h->rows.n_rows; i++)
            if (opens_group(h, i, kind)) print_group(h, group_name(h, &h->rows.row[i], kind), kind);
    for (int i = 0; i < h->rows.n_rows; i++)
        if (opens_group(h, i, OF_SOURCE)) print_memory(h, h->rows.row[i].label);
    for (int i = 0; i < h->rows.n_rows; i++)
        if (h->rows.row[i].skip) count_reason(h, h->rows.row[i].skip);
    for (int i = 0; i < h->n_reasons; i++)
        printf("skipped %d: %s\n", h->reason[i].n, h->reason[i].text);
}

static Err write_rows(const Harness *h)
{
    FILE *f = fopen(h->out, "w");
    if (!f) return err_fail(ERR_IO, "-o %s: cannot be written", h->out);
    fprintf(f, "source,row_id,cluster,fitted,measured_ms,predicted_ms");
    for (int k = 0; k < N_TIMES; k++) fprintf(f, ",%s_ms", time_kind_name((TimeKind)k));
    fprintf(f, ",needed_gib,stages,skipped\n");
    for (int i = 0; i < h->rows.n_rows; i++) {
        const RowRecord *r = &h->rows.row[i];
        fprintf(f, "%s,%s,%s,%d,%.6g,%.6g", r->source, r->id,
                r->skip ? r->plan.cluster : h->rows.set[r->set].file, r->quarter,
                1e3 * r->plan.step_s, 1e3 * r->seconds);
        for (int k = 0; k < N_TIMES; k++) fprintf(f, ",%.5g", 1e3 * r->time.spent_s[k]);
        const char *stages = r->plan.job.parallel.split;
        fprintf(f, ",%.5g,\"%s\",\"%s\"\n", r->needed_bytes / 0x1p30, stages ? stages : "",
                r->skip ? r->skip : "");
    }
    if (fclose(f) != 0) return err_fail(ERR_IO, "-o %s: the output is not complete", h->out);
    return OK;
}

/* Sets a flag; returns the number of arguments that it takes, 0 for a table. */
static Err read_flag(Harness *h, int argc, char **argv, int i, int *taken)
{
    const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
    *taken = 0;
    if (flag[0] != '-') return OK;
    *taken = 1;
    if (strcmp(flag, "--fit") == 0) {
        h->fit = h->held_out = true;
    } else if (strcmp(flag, "--regret") == 0) {
        h->regret = h->held_out = true;
    } else if (strcmp(flag, "--rates") == 0) {
        h->rates = true;
    } else if (strcmp(flag, "--held-out") == 0) {
        h->held_out = true;
    } else if (value && strcmp(flag, "-o") == 0) {
        h->out = value;
        *taken = 2;
    } else if (value && strcmp(flag, "--write") == 0) {
        h->write = value;
        *taken = 2;
    } else if (value && strcmp(flag, "--every") == 0) {
        h->every = atoi(value);
        *taken = 2;
        if (h->every < 1) return err_fail(ERR_CONFIG, "--every %s: a number of at least 1", value);
    } else if (value && strcmp(flag, "--folds") == 0) {
        h->fit = true;
        h->folds = atoi(value);
        *taken = 2;
        if (h->folds < 2 || h->folds > 10)
            return err_fail(ERR_CONFIG, "--folds %s: a number from 2 to 10", value);
    } else {
        return err_fail(ERR_CONFIG,
                        "%s: unknown; the flags are -o FILE, --every N, --held-out, --fit, "
                        "--folds N, --regret, --rates, --write FOLDER",
                        flag);
    }
    return OK;
}

static Err predict_all(Harness *h)
{
    PublishedRows *p = &h->rows;
    if (h->fit) TRY(published_fit(p, FIT_ROUNDS));
    if (h->fit) TRY(published_fit_memory(p, FIT_ROUNDS));
    p->stamp++;
    for (int i = 0; i < p->n_rows; i++) {
        rows_predict_memory(&p->row[i]);
        if (!p->row[i].skip) TRY(rows_predict(p, i));
    }
    return OK;
}

static Err run(Harness *h, int argc, char **argv)
{
    int tables = 0, taken = 0;
    PublishedRows *p = &h->rows;
    TRY(arena_open(&h->keep, "tables", ARENA_PLENTY));
    TRY(arena_open(&h->clocks, "clocks", ARENA_PLENTY));
    TRY(arena_open(&h->temp, "compiler", ARENA_PLENTY));
    TRY(ARENA_NEW(&h->keep, MAX_ROWS_READ, &p->row));
    TRY(ARENA_NEW(&h->keep, MAX_ROWS_READ, &h->error));
    p->keep = &h->keep;
    p->cache = (PlanCache){.arena = &h->clocks, .temp = &h->temp};
    TRY(stacks_read("share/stacks.csv", &h->keep, &p->stacks));
    for (int i = 1; i < argc; i += taken ? taken : 1) TRY(read_flag(h, argc, argv, i, &taken));
    p->by_group = h->regret && h->fit;
    p->deal_all = h->regret && h->folds;
    if (h->rates && !p->deal_all)
        return err_fail(ERR_CONFIG,
                        "--rates leaves out factors of shapes, which only --regret --folds N fits");
    p->folder = h->fit ? "bench/priors" : "share/clusters";
    for (int i = 0; h->fit && i < p->stacks.n; i++) p->stacks.row[i].time = 1;
    for (int i = 1; i < argc; i += taken ? taken : 1) {
        TRY(read_flag(h, argc, argv, i, &taken));
        if (taken) continue;
        TRY(rows_read(p, argv[i], h->every));
        tables++;
    }
    if (tables == 0) return err_fail(ERR_CONFIG, "no table; name a CSV file after the flags");
    if (h->write && (!h->fit || h->folds)) return err_fail(ERR_CONFIG, "--write: only with --fit");
    if (p->deal_all && !h->rates) TRY(published_shapes(p));
    TRY(h->folds ? published_folds(p, FIT_ROUNDS, h->folds) : predict_all(h));
    if (h->write) TRY(published_write(p, h->write));
    return h->out ? write_rows(h) : OK;
}

int main(int argc, char **argv)
{
    static Harness h = {.every = 1};
    if (run(&h, argc, argv) != OK) {
        fprintf(stderr, "published: %s\n", err_text());
        return 2;
    }
    print_all(&h);
    return 0;
}
