/* published.c -- the predictions of `sheaf simulate --cluster` beside published measurements.
 *
 *     build/release/bench/published [-o predictions.csv] [--every N] [--fit] TABLE.csv ...
 *
 * Each row is compiled as a plan and played on the cluster file of its GPU (share/clusters), from
 * the root of the repository. A rank with many micro-batches is played with two smaller numbers of
 * them, and its time is extrapolated: each further one takes the same time. Prints a line for each
 * source and for each cluster file, in percent:
 *
 *     SOURCE n=N skipped=K mape=X median=Y p90=Z bias=W       bias: mean of predicted - measured
 *
 * then the number of skipped rows by reason. --every N reads every N-th row of a table.
 *
 * Without --fit nothing is fitted. With it, each source has one time factor, the least-squares fit
 * of log time on the rows whose xxHash64 of row_id is a multiple of 4; all other rows are reported,
 * and `factor` is printed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan/clock.h"
#include "plan/cluster.h"
#include "support/published.h"

enum { MAX_GROUPS = 64, MAX_REASONS = 256, MAX_ROWS_READ = 1 << 16 };

/* A source, or a cluster. */
typedef struct {
    const char *name;
    int skipped;
    double factor; /* on predicted times */
} RowGroup;

typedef struct {
    int source, cluster; /* groups */
    double ratio;        /* predicted / measured */
    bool fitted;         /* the factor is fitted on it: it is not reported */
} PredictedRow;

typedef struct {
    char text[160];
    int n;
} SkipReason;

typedef struct {
    Arena keep, arena, temp;
    RowGroup group[MAX_GROUPS];
    int n_groups, n_rows, n_reasons;
    PredictedRow *row; /* [MAX_ROWS_READ] */
    double *error;     /* [MAX_ROWS_READ]: of the group that is printed */
    SkipReason reason[MAX_REASONS];
    FILE *out;
    int every;
    bool fit;
} Harness;

static Err group_of(Harness *h, const char *name, int *out)
{
    for (*out = 0; *out < h->n_groups; ++*out)
        if (strcmp(h->group[*out].name, name) == 0) return OK;
    if (h->n_groups == MAX_GROUPS)
        return err_fail(ERR_CONFIG, "%s: more than %d sources and clusters", name, MAX_GROUPS);
    h->group[h->n_groups++].factor = 1;
    return arena_string(&h->keep, name, &h->group[*out].name);
}

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

static Err play_micros(Harness *h, PublishedRow *r, const Cluster *c, int micros, double *out)
{
    StepTime time;
    Mesh mesh;
    r->job.micros = micros;
    TRY(mesh_sized(&r->job.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = c, .job = &r->job, .mesh = &mesh};
    TRY(clock_step(&in, &h->arena, &h->temp, &time));
    *out = time.step_s;
    return OK;
}

static Err predict(Harness *h, PublishedRow *r, double *step_s)
{
    char path[96];
    Cluster c;
    double less, more;
    const int pp = r->job.parallel.mesh.pp, few = 2 * pp, some = 3 * pp;
    snprintf(path, sizeof path, "share/clusters/%s.yaml", r->cluster);
    TRY(cluster_read(path, &h->arena, &c));
    if (r->node > 0 && c.rates.n_levels > 1) c.rates.level[0].ranks = r->node;
    if (r->micros <= some) return play_micros(h, r, &c, r->micros, step_s);
    TRY(play_micros(h, r, &c, few, &less));
    TRY(play_micros(h, r, &c, some, &more));
    *step_s = more + (more - less) * (r->micros - some) / (some - few);
    return OK;
}

static Err predict_row(Harness *h, const CsvTable *t, int row)
{
    static PublishedRow r; /* its job points to its model */
    const char *source = csv_text(t, row, "source");
    const char *id = csv_text(t, row, "row_id");
    PredictedRow p = {.fitted = h->fit && XXH64(id, strlen(id), 0) % 4 == 0};
    double step_s = 0;
    arena_rewind(&h->arena, 0);
    arena_rewind(&h->temp, 0);
    published_row(t, row, &r);
    TRY(group_of(h, source, &p.source));
    if (!r.skip && predict(h, &r, &step_s) != OK) r.skip = err_text();
    if (h->out)
        fprintf(h->out, "%s,%s,%s,%.6g,%.6g,\"%s\"\n", source, id, r.cluster, 1e3 * r.step_s,
                1e3 * step_s, r.skip ? r.skip : "");
    if (r.skip) {
        h->group[p.source].skipped++;
        count_reason(h, r.skip);
        return OK;
    }
    TRY(group_of(h, r.cluster, &p.cluster));
    p.ratio = step_s / r.step_s;
    if (h->n_rows == MAX_ROWS_READ)
        return err_fail(ERR_CONFIG, "%s: more than %d rows", source, MAX_ROWS_READ);
    h->row[h->n_rows++] = p;
    return OK;
}

/* The factor of a source is the geometric mean of measured / predicted. */
static void fit_source(Harness *h, int source)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < h->n_rows; i++) {
        if (h->row[i].source != source || !h->row[i].fitted) continue;
        sum -= log(h->row[i].ratio);
        n++;
    }
    if (n > 0) h->group[source].factor = exp(sum / n);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_group(Harness *h, int group)
{
    const RowGroup *g = &h->group[group];
    double sum = 0, bias = 0;
    int n = 0;
    for (int i = 0; i < h->n_rows; i++) {
        const PredictedRow *r = &h->row[i];
        if ((r->source != group && r->cluster != group) || r->fitted) continue;
        const double error = r->ratio * h->group[r->source].factor - 1;
        bias += error;
        sum += fabs(error);
        h->error[n++] = fabs(error);
    }
    qsort(h->error, (size_t)n, sizeof *h->error, by_value);
    printf("%s n=%d skipped=%d", g->name, n, g->skipped);
    if (n > 0)
        printf(" mape=%.1f median=%.1f p90=%.1f bias=%.1f", 100 * sum / n, 100 * h->error[n / 2],
               100 * h->error[n * 9 / 10], 100 * bias / n);
    if (g->factor != 1) printf(" factor=%.3f", g->factor);
    printf("\n");
}

static Err read_table(Harness *h, const char *path)
{
    CsvTable t;
    TRY(csv_read(path, &h->keep, &t));
    for (int row = 0; row < t.n_rows; row += h->every) {
        TRY(predict_row(h, &t, row));
        fflush(h->out ? h->out : stdout);
    }
    return OK;
}

static Err run(Harness *h, int argc, char **argv)
{
    int tables = 0;
    TRY(arena_open(&h->keep, "tables", ARENA_PLENTY));
    TRY(ARENA_NEW(&h->keep, MAX_ROWS_READ, &h->row));
    TRY(ARENA_NEW(&h->keep, MAX_ROWS_READ, &h->error));
    TRY(arena_open(&h->arena, "clock", ARENA_PLENTY));
    TRY(arena_open(&h->temp, "compiler", ARENA_PLENTY));
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "-o") == 0 && more) {
            h->out = fopen(argv[++i], "w");
            if (!h->out) return err_fail(ERR_IO, "-o %s: cannot be written", argv[i]);
            fprintf(h->out, "source,row_id,cluster,measured_ms,predicted_ms,skipped\n");
        } else if (strcmp(argv[i], "--every") == 0 && more) {
            h->every = atoi(argv[++i]);
            if (h->every < 1)
                return err_fail(ERR_CONFIG, "--every %s: a number of at least 1", argv[i]);
        } else if (strcmp(argv[i], "--fit") == 0) {
            h->fit = true;
        } else if (argv[i][0] == '-') {
            return err_fail(ERR_CONFIG, "%s: unknown; the flags are -o FILE, --every N, --fit",
                            argv[i]);
        } else {
            TRY(read_table(h, argv[i]));
            tables++;
        }
    }
    if (tables == 0) return err_fail(ERR_CONFIG, "no table; name a CSV file after the flags");
    return OK;
}

int main(int argc, char **argv)
{
    static Harness h = {.every = 1};
    const Err err = run(&h, argc, argv);
    if (h.out && fclose(h.out) != 0) fprintf(stderr, "published: the output is not complete\n");
    if (err != OK) {
        fprintf(stderr, "published: %s\n", err_text());
        return 2;
    }
    for (int i = 0; i < h.n_groups; i++) fit_source(&h, i);
    for (int i = 0; i < h.n_groups; i++) print_group(&h, i);
    for (int i = 0; i < h.n_reasons; i++)
        printf("skipped %d: %s\n", h.reason[i].n, h.reason[i].text);
    return 0;
}
