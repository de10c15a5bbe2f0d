/* published_rows.c -- reads tables and predicts rows. */
#include "support/published_rows.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan/cluster/cluster.h"
#include "support/published_memory.h"
#include "support/stages.h"

enum { FOLD_BASE = 2520 }; /* every number of folds up to 10 divides it */

/* Constants are fitted on rows whose hash mod 4 is 0, but on none in FP8; other digits of the hash
 * deal rows to folds. */
static void deal_row(const PublishedRows *p, RowRecord *r)
{
    const char *key = p->by_group ? r->group : r->id;
    const uint64_t hash = XXH64(key, strlen(key), 0);
    const bool may_be_fitted = !r->plan.job.compile.fp8.names;
    r->quarter = r->fitted = !p->deal_all && hash % 4 == 0 && may_be_fitted;
    r->dealt = may_be_fitted && (r->quarter || p->deal_all);
    r->fold = (int)(hash / 4 % FOLD_BASE);
}

static Err name_group(const PublishedRows *p, const CsvTable *t, int at, const char **out)
{
    Text text = text_in(p->keep);
    text_add(&text, "%s %s %s %s", csv_text(t, at, "model"), csv_text(t, at, "gpus"),
             csv_text(t, at, "global_batch"), csv_text(t, at, "seq_len"));
    return text_done(&text, out);
}

static Err name_labels(const PublishedRows *p, RowRecord *r)
{
    Text text = text_in(p->keep);
    text_add(&text, "%s%s", r->source, r->plan.job.compile.fp8.names ? " fp8" : "");
    TRY(text_done(&text, &r->label));
    r->release = "";
    if (!r->plan.release[0]) return OK;
    text = text_in(p->keep);
    text_add(&text, "%s %s", r->label, r->plan.release);
    return text_done(&text, &r->release);
}

static Err set_of(PublishedRows *p, const char *cluster, int *out)
{
    char path[160];
    for (*out = 0; *out < p->n_sets; ++*out)
        if (strcmp(p->set[*out].file, cluster) == 0) return OK;
    if (p->n_sets == MAX_SETS)
        return err_fail(ERR_CONFIG, "%s: more than %d clusters", cluster, MAX_SETS);
    ClusterSet *s = &p->set[p->n_sets];
    snprintf(s->file, sizeof s->file, "%s", cluster);
    snprintf(path, sizeof path, "%s/%s.yaml", p->folder, cluster);
    FILE *f = fopen(path, "r"); /* clusters without a fit are in share/clusters alone */
    if (!f) snprintf(path, sizeof path, "share/clusters/%s.yaml", cluster);
    if (f) fclose(f);
    s->fits = f != NULL;
    TRY(cluster_read(path, p->keep, &s->cluster));
    s->prior = s->cluster;
    p->n_sets++;
    return OK;
}

/* Work and launches take `factor` times as long. */
static void slow_work(Cluster *c, double factor)
{
    for (int i = 0; i < N_WORK_CLASSES; i++)
        for (int t = 0; t < N_DTYPES; t++) c->rates.flops_per_s[i][t] /= factor;
    c->rates.memory_Bps /= factor;
    c->rates.launch_s *= factor;
    c->host_launch_s *= factor;
}

/* The cluster of a row: its node, its stack, and the links that the run itself measured. */
static Cluster cluster_of(const PublishedRows *p, const RowRecord *r)
{
    /* GB/s of an all-gather in a node that the links of a file stand for. */
    const double usual = r->stack && r->stack->node_below > 0 ? 242 : 263;
    Cluster c = p->set[r->set].cluster;
    if (r->plan.node > 0 && c.rates.n_levels > 1) c.rates.level[0].ranks = r->plan.node;
    if (r->stack) {
        c.serial = r->stack->serial;
        c.stops_host = r->stack->stops_host;
    }
    if (r->plan.node_gbps > 0) c.rates.level[0].Bps *= r->plan.node_gbps / usual;
    if (r->shape_at) slow_work(&c, r->shape_at->factor);
    return c;
}

/* Layers, embedding and head are the units that stages hold; a stage without one only passes its
 * values on. */
static void limit_stages(PublishedRow *r)
{
    const int64_t units = r->model.n_layers + 2;
    if (r->job.parallel.chunks <= 1 && r->job.parallel.mesh.pp > units)
        r->job.parallel.mesh.pp = (int)units;
}

/* The units of the stages of a stack that deals them by cost: "7,5,5,1". */
static Err deal_stages(PublishedRows *p, PublishedRow *r)
{
    ParallelSettings *job = &r->job.parallel;
    StageShape s;
    if (job->mesh.pp <= 1 || job->mesh.pp > MAX_STAGES) return OK;
    stages_by_cost(&r->model, job->mesh.pp, &s);
    Text t = text_in(p->keep);
    for (int i = 0; i < s.n; i++) text_add(&t, "%s%d", i ? "," : "", s.units[i]);
    job->mesh.pp = s.n;
    return text_done(&t, &job->split);
}

/* One chunk for each layer of a stage, if the row does not say. */
static void interleave(PublishedRow *r, const CsvTable *t, int at)
{
    ParallelSettings *job = &r->job.parallel;
    const int64_t pp = job->mesh.pp, layers = r->model.n_layers;
    if (*csv_text(t, at, "vp") || pp <= 1 || layers % pp != 0 || r->micros % pp != 0) return;
    job->chunks = (int)(layers / pp);
    r->job.schedule = "interleaved";
}

/* To f32, scale, mask, softmax, to 16 bits, for one kernel; the same again in backward. */
enum { UNFUSED_SOFTMAX = 5 };

/* Collectives for each unit of a rank. */
static double calls_of(const PublishedRow *r, const StackRow *stack)
{
    const ParallelSettings *job = &r->job.parallel;
    if (job->zero > 0) return stack->zero_calls;
    if (stack->bucket_bytes <= 0) return 1;
    return buckets_per_layer(&r->model, job->mesh.tp, stack->bucket_bytes);
}

/* Kernels and collectives that the stack has more of, or fewer. */
static void set_calls(PublishedRow *r, const StackRow *stack)
{
    const int64_t heads = r->model.n_heads / r->job.parallel.mesh.tp;
    r->dp_calls = calls_of(r, stack);
    if (r->job.parallel.zero == 3) r->dp_bytes = stack->zero3_bytes;
    if (r->job.parallel.zero == 0) r->dp_bytes = stack->grad_bytes / 4;
    if (stack->softmax_of > 0 && r->job.batch.sequences * heads % stack->softmax_of != 0)
        r->attention_launches = UNFUSED_SOFTMAX;
}

static Err read_row(PublishedRows *p, const CsvTable *t, int at)
{
    RowRecord *r = &p->row[p->n_rows];
    if (p->n_rows == MAX_ROWS_READ) return err_fail(ERR_CONFIG, "more than %d rows", MAX_ROWS_READ);
    *r = (RowRecord){.source = csv_text(t, at, "source"),
                     .id = csv_text(t, at, "row_id"),
                     .gpu = csv_text(t, at, "gpu_type"),
                     .oom = (int)csv_number(t, at, "oom", -1),
                     .memory_bytes = 0x1p30 * csv_number(t, at, "mem_gib", 0)};
    r->recovered = r->oom == 0 && strstr(csv_text(t, at, "notes"), "oom_in_log=1");
    if (r->recovered) r->oom = -1;
    published_row(t, at, &r->plan);
    r->skip = r->plan.skip;
    TRY(name_labels(p, r));
    TRY(name_group(p, t, at, &r->group));
    deal_row(p, r);
    r->stack = stack_find(&p->stacks, r->source, r->gpu, r->plan.node_gbps);
    if (r->stack) {
        r->plan.job.compile.unfused = r->stack->eager;
        if (r->stack->split_sends) r->plan.send_parts = r->plan.job.parallel.mesh.tp;
        if (r->stack->weight_bytes > 0 && csv_number(t, at, "experts", 0) <= 1) {
            r->shape = stack_shape(t, at);
            r->needed_bytes = stack_bytes(r->stack, &r->shape);
        }
    }
    if (!r->skip && r->stack && r->stack->stages_by_cost) TRY(deal_stages(p, &r->plan));
    if (!r->skip && r->stack && r->stack->interleaves) interleave(&r->plan, t, at);
    if (!r->skip && r->stack) set_calls(&r->plan, r->stack);
    limit_stages(&r->plan);
    p->n_rows++;
    if (r->skip) return OK;
    return set_of(p, r->stack ? r->stack->cluster : r->plan.cluster, &r->set);
}

Err rows_read(PublishedRows *p, const char *path, int every)
{
    CsvTable *t;
    TRY(ARENA_NEW(p->keep, 1, &t));
    TRY(csv_read(path, p->keep, t));
    for (int at = 0; at < t->n_rows; at += every) TRY(read_row(p, t, at));
    return OK;
}

void rows_predict_memory(RowRecord *r)
{
    if (r->needed_bytes > 0) r->needed_bytes = stack_bytes(r->stack, &r->shape);
}

Err rows_predict(PublishedRows *p, int row)
{
    RowRecord *r = &p->row[row];
    const Cluster c = cluster_of(p, r);
    if (!r->opened) {
        Cluster *kept; /* clocks point to it */
        TRY(ARENA_NEW(p->keep, 1, &kept));
        *kept = c;
        if (plan_clocks(&p->cache, &r->plan, kept, &r->clocks) != OK)
            return arena_string(p->keep, err_text(), &r->skip);
        r->opened = true;
    }
    /* Rows with links of their own share clocks, but not their times. */
    const int64_t own = r->plan.node_gbps > 0 ? row + 1 : 0;
    const int64_t stamp = (p->stamp * MAX_SETS + r->set) * (MAX_ROWS_READ + 1) + own;
    TRY(plan_seconds(&r->clocks, &c, stamp, &r->time));
    r->seconds = r->time.step_s * (r->stack ? r->stack->time : 1);
    return OK;
}
