/* flags.c -- the space of a request: the run, the cluster, numbers of ranks, limits. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/config/job.h"
#include "cli/plan/verb.h"
#include "plan/cluster/cluster.h"
#include "plan/search/map.h"

enum { MAX_GPUS = 1 << 20 };

/* Meshes whose best plans are placed if devices differ: their order is another one then. */
enum { UNEVEN_MESHES = 24 };

static Err read_number(const char *flag, const char *text, double low, double high, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (end != text && !*end && !errno && *out >= low && *out <= high) return OK;
    return err_fail(ERR_CONFIG, "%s %.40s: must be a number from %g to %g", flag, text, low, high);
}

/* Reads "64", or "8..64": 8, its doubles, and 64. */
static Err read_gpus(PlanVerb *v, int fallback)
{
    const char *text = v->flag.gpus;
    char *end;
    long first = text ? strtol(text, &end, 10) : fallback, last = first;
    if (text && end != text && strncmp(end, "..", 2) == 0) last = strtol(end + 2, &end, 10);
    if (first < 1 || last < first || last > MAX_GPUS || (text && *end))
        return err_fail(ERR_CONFIG,
                        "--gpus %.40s: must be a number of ranks, or a range as 8..64, up to %d",
                        text ? text : "", MAX_GPUS);
    for (long n = first; n <= last; n *= 2) v->ranks[v->n_ranks++] = (int)n;
    if (v->ranks[v->n_ranks - 1] != last) v->ranks[v->n_ranks++] = (int)last;
    return OK;
}

/* Refuses an argument run.ranks that --gpus does not contain. The run.ranks of a run file is the
 * default of --gpus. */
static Err check_ranks(const PlanVerb *v, const Config *c)
{
    const bool given = strcmp(c->origin[KEY_run_ranks], "command line") == 0;
    if (!v->flag.gpus || !given) return OK;
    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i] == c->run_ranks) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: run.ranks=%lld contradicts --gpus %.40s; leave one of the two out",
                    c->origin[KEY_run_ranks], (long long)c->run_ranks, v->flag.gpus);
}

static Err read_objective(PlanVerb *v)
{
    static const char *const word[] = {"time", "cost", "energy"};
    const Cluster *c = v->space.cluster;
    const char *text = v->flag.objective ? v->flag.objective : "time";
    int i = 0;
    while (i < 3 && strcmp(word[i], text) != 0) i++;
    if (i == 3)
        return err_fail(ERR_CONFIG, "--objective %.40s: must be time, cost or energy", text);
    v->report.objective = (Objective)i;
    if (i == OBJECTIVE_COST && c->price_per_hour <= 0)
        return err_fail(ERR_CONFIG,
                        "--objective cost: the cluster file %s has no price_per_hour; add it",
                        v->flag.cluster);
    if (i == OBJECTIVE_ENERGY && c->busy_watt <= 0)
        return err_fail(ERR_CONFIG,
                        "--objective energy: the cluster file %s has no power_w; add it",
                        v->flag.cluster);
    return OK;
}

static Err read_limits(PlanVerb *v)
{
    double x;
    v->report.limit_bytes = v->space.cluster->memory_bytes;
    v->top = 5;
    v->max_nodes = 16000;
    if (v->flag.memory) {
        TRY(read_number("--memory", v->flag.memory, 1e-6, 1e6, &x));
        v->report.limit_bytes = x * 0x1p30;
    }
    if (v->flag.top) {
        TRY(read_number("--top", v->flag.top, 1, MAX_PLAN_ROWS, &x));
        v->top = (int)x;
    }
    v->shown = v->top;
    if (v->linked && cluster_has_devices(v->linked) && v->top < UNEVEN_MESHES)
        v->top = UNEVEN_MESHES;
    if (v->flag.measure) {
        TRY(read_number("--measure", v->flag.measure, 1, 16, &x));
        v->measure = (int)x;
        if (v->top < v->measure) v->top = v->measure;
        if (v->shown < v->measure) v->shown = v->measure;
    }
    if (v->flag.launcher && !v->measure)
        return err_fail(ERR_CONFIG, "--launcher: has no effect without --measure; add --measure 3");
    if (v->measure && v->n_ranks > 1)
        return err_fail(ERR_CONFIG,
                        "--measure with --gpus %.40s: runs need one number of ranks; give one",
                        v->flag.gpus);
    if (v->flag.nodes) {
        TRY(read_number("--nodes", v->flag.nodes, 1, 1e8, &x));
        v->max_nodes = (int)x;
    }
    return OK;
}

/* Searches leave out links and devices of single nodes: their times are bounds for any order of the
 * nodes. */
static Err set_cluster(PlanVerb *v, const Cluster *cluster)
{
    Cluster *alike;
    TRY(ARENA_NEW(v->arena, 1, &alike));
    TRY(ARENA_NEW(v->arena, 1, &v->ordered));
    *alike = cluster_alike(cluster);
    v->linked = cluster->rates.nodes ? cluster : NULL;
    v->report.cluster = alike;
    *v->ordered = *alike;
    return OK;
}

Err plan_open_space(PlanVerb *v)
{
    PlanReport *r = &v->report;
    Config *config;
    ModelConfig *model;
    Cluster *cluster;
    TRY(ARENA_NEW(v->arena, 1, &config));
    TRY(ARENA_NEW(v->arena, 1, &model));
    TRY(ARENA_NEW(v->arena, 1, &cluster));
    TRY(args_config(&v->args, v->arena, config));
    TRY(config_model(config, v->arena, model));
    TRY(config_job(config, model, &v->job));
    if (!v->flag.cluster)
        return err_fail(ERR_CONFIG, "plan: --cluster FILE is missing; share/clusters has some, and "
                                    "`sheaf profile` measures this machine");
    TRY(cluster_read(v->flag.cluster, v->arena, cluster));
    v->job.compile.prepack = NULL;
    TRY(config_cluster_device(config, cluster, &v->job));
    if (config->numerics_fold > 1)
        return err_fail(ERR_CONFIG, "plan: numerics.fold=%lld is for one rank; set numerics.fold=1",
                        (long long)config->numerics_fold);
    v->job.parallel.evict = false;
    r->config = config;
    r->model = model;
    TRY(set_cluster(v, cluster));
    v->space = (PlanSpace){.base = &v->job, .cluster = r->cluster, .global = config->batch_global};
    TRY(plan_fixed_of(config, &v->space.fixed));
    PlanFixed choice = v->space.fixed; /* its errors come before the search */
    if (v->flag.choice) TRY(plan_fix(v->flag.choice, v->arena, &choice));
    TRY(read_gpus(v, (int)config->run_ranks));
    TRY(check_ranks(v, config));
    TRY(read_objective(v));
    return read_limits(v);
}
