/* plan.c -- `sheaf plan`: the fastest way to distribute a run over a cluster, with a certificate.
 *
 *     sheaf plan run.yaml [key=value ...] --cluster FILE [--gpus N | A..B] [--memory GIB]
 *                [--objective time|cost|energy] [--explain-choice KEY=VALUE] [-o PLAN] [--json]
 *                [--frontier] [--svg FILE] [--top N]
 *
 * The best plan is written as a plan file, read again as `sheaf train --plan` would read it, linked
 * on all ranks and timed by the clock, before anything is printed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/new_file.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "plan/cluster.h"
#include "plan/simulate.h"

enum { MAX_GPUS = 1 << 20, FRONTIER_STEPS = 10 };

typedef struct {
    const char *cluster, *gpus, *memory, *objective, *choice, *out, *svg, *top, *nodes;
    bool json, frontier;
} PlanFlags;

typedef struct {
    PlanFlags flag;
    Args args;
    Arena *arena, *temp;
    JobSettings job; /* the run's, of which the search changes the distribution */
    PlanSpace space;
    PlanCache *cache;
    int ranks[32], n_ranks, top, max_nodes;
    ProgressLine line;
    PlanReport report;
} PlanVerb;

/* ---- flags ---- */

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
    v->max_nodes = 3000;
    if (v->flag.memory) {
        TRY(read_number("--memory", v->flag.memory, 1e-6, 1e6, &x));
        v->report.limit_bytes = x * 0x1p30;
    }
    if (v->flag.top) {
        TRY(read_number("--top", v->flag.top, 1, MAX_PLAN_ROWS, &x));
        v->top = (int)x;
    }
    if (v->flag.nodes) {
        TRY(read_number("--nodes", v->flag.nodes, 1, 1e8, &x));
        v->max_nodes = (int)x;
    }
    return OK;
}

/* ---- searches ---- */

static void show_progress(void *context, const SearchCounts *counts)
{
    PlanVerb *v = context;
    progress_parts(&v->line, counts->played < v->max_nodes ? counts->played : v->max_nodes,
                   v->max_nodes);
}

static SaveMemory counted_saves(const PlanVerb *v)
{
    if (!v->space.cluster->host_memory) return SAVE_MEMORY_NONE;
    return save_memory(v->report.config->run_save_every);
}

static Err open_search(PlanVerb *v, int ranks, const PlanFixed *fixed, PlanSearch *s)
{
    *s = (PlanSearch){.space = v->space,
                      .validates = v->report.config->run_valid_every > 0,
                      .save = counted_saves(v),
                      .max_played = v->max_nodes,
                      .max_linked = 400,
                      .arena = v->arena,
                      .temp = v->temp,
                      .cache = v->cache,
                      .progress = show_progress,
                      .context = v};
    s->space.ranks = ranks;
    s->space.fixed = *fixed;
    return plan_search_open(s);
}

static PlanRow row_of(const PlanSearch *s, const PlanRanking *r, int i, double limit)
{
    const PlanNode *node = &s->node[r->node[i]];
    return (PlanRow){.point = node->point,
                     .ranks = s->space.ranks,
                     .time = s->times[node->time],
                     .memory_bytes = node->memory_bytes,
                     .limit_bytes = limit,
                     .bound_s = r->complete && i == 0 ? node->key_s : r->bound_s,
                     .complete = r->complete && i == 0};
}

static void add_counts(PlanReport *r, const PlanSearch *s)
{
    r->counts.nodes += s->counts.nodes;
    r->counts.compiled += s->counts.compiled;
    r->counts.played += s->counts.played;
    r->counts.timed += s->counts.timed;
    r->counts.linked += s->counts.linked;
    r->counts.refused += s->counts.refused;
}

static bool is_row(const PlanReport *r, const PlanPoint *p)
{
    for (int i = 0; i < r->n_rows; i++) {
        const MeshSizes *m = &r->row[i].point.mesh;
        if (m->tp == p->mesh.tp && m->cp == p->mesh.cp && m->pp == p->mesh.pp) return true;
    }
    return false;
}

/* Counts the meshes that are not among the rows, and finds the smallest key of their plans. */
static void count_meshes(const PlanSearch *s, PlanReport *r)
{
    const MeshSizes *last = NULL;
    r->meshes = r->meshes_left = 0;
    r->left_s = 0;
    for (int i = 0; i < s->n; i++) {
        const PlanNode *node = &s->node[i];
        const MeshSizes *m = &node->point.mesh;
        const bool is_new = !last || last->tp != m->tp || last->cp != m->cp || last->pp != m->pp;
        last = m;
        r->meshes += is_new;
        if (is_row(r, &node->point)) continue;
        r->meshes_left += is_new;
        if (node->level == LEVEL_REFUSED || node->memory_bytes > r->limit_bytes) continue;
        if (r->left_s == 0 || node->key_s < r->left_s) r->left_s = node->key_s;
    }
}

static Err search_frontier(PlanVerb *v, PlanSearch *s)
{
    PlanReport *r = &v->report;
    for (int i = FRONTIER_STEPS - 1; i > 0 && r->n_frontier < MAX_PLAN_ROWS; i--) {
        const double limit = r->limit_bytes * i / FRONTIER_STEPS;
        const PlanRow *before = &r->frontier[r->n_frontier - 1];
        PlanRanking ranking;
        if (before->memory_bytes <= limit) continue; /* the plan before fits here too */
        TRY(plan_search(s, limit, 1, false, &ranking));
        if (ranking.n == 0) return OK;
        r->frontier[r->n_frontier++] = row_of(s, &ranking, 0, limit);
    }
    return OK;
}

/* The best plans of one number of ranks; those of the best number become the rows. */
static Err search_ranks(PlanVerb *v, int ranks)
{
    PlanReport *r = &v->report;
    PlanRanking ranking;
    PlanSearch s;
    TRY(open_search(v, ranks, &v->space.fixed, &s));
    TRY(plan_search(&s, r->limit_bytes, v->top, true, &ranking));
    if (ranking.n > 0 && r->n_frontier < MAX_PLAN_ROWS) {
        const PlanRow best = row_of(&s, &ranking, 0, r->limit_bytes);
        r->frontier[r->n_frontier++] = best;
        if (r->n_rows == 0 || plan_objective(r, &best) < plan_objective(r, &r->row[0])) {
            r->n_rows = ranking.n;
            for (int i = 0; i < ranking.n; i++) r->row[i] = row_of(&s, &ranking, i, r->limit_bytes);
            r->points = s.n;
            count_meshes(&s, r);
        }
        if (v->flag.frontier) TRY(search_frontier(v, &s));
    }
    add_counts(r, &s);
    if (s.excess > 0 && r->n_rows > 0) { /* a bound was too high: the certificate counts with it */
        r->loose_bound = r->row[0].complete;
        r->row[0].complete = false;
        r->row[0].bound_s = r->row[0].time.step_s / s.excess;
    }
    return OK;
}

static Err search_choice(PlanVerb *v)
{
    PlanReport *r = &v->report;
    PlanFixed fixed = v->space.fixed;
    PlanRanking ranking;
    PlanSearch s;
    if (!v->flag.choice) return OK;
    r->choice = v->flag.choice;
    TRY(plan_fix(v->flag.choice, v->arena, &fixed));
    TRY(open_search(v, r->row[0].ranks, &fixed, &s));
    TRY(plan_search(&s, r->limit_bytes, 1, true, &ranking));
    add_counts(r, &s);
    r->n_choice = ranking.n;
    if (ranking.n > 0) r->with_choice = row_of(&s, &ranking, 0, r->limit_bytes);
    return OK;
}

static Err nothing_fits(const PlanVerb *v)
{
    char limit[24];
    if (v->report.counts.nodes == 0)
        return err_fail(ERR_CONFIG,
                        "plan: the space has no plan for %d%s ranks with the keys that are given: "
                        "their product must divide the ranks, schedules that slice sequences are "
                        "not in the space, and cp needs 1024 tokens of a sequence per rank; leave "
                        "one of the keys out, or change --gpus",
                        v->ranks[v->n_ranks - 1], v->n_ranks > 1 ? " or fewer" : "");
    return err_fail(
        ERR_CONFIG,
        "plan: no plan for %d%s ranks fits into %s a rank; of %d plans %d were "
        "examined: use more ranks (--gpus), a smaller data.seq_len, or parallel.offload",
        v->ranks[v->n_ranks - 1], v->n_ranks > 1 ? " or fewer" : "",
        text_bytes((int64_t)v->report.limit_bytes, limit), v->report.counts.nodes,
        v->report.counts.played);
}

static Err search_all(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const double start = now_s();
    v->line = progress_begin("planning", r->model->name, 0);
    Err err = OK;
    for (int i = 0; i < v->n_ranks && err == OK; i++) err = search_ranks(v, v->ranks[i]);
    if (err == OK && r->n_rows > 0) err = search_choice(v);
    progress_end(&v->line);
    r->search_s = now_s() - start;
    TRY(err);
    return r->n_rows > 0 ? OK : nothing_fits(v);
}

/* ---- the best plan, as train would read it ---- */

/* The arguments without those that the plan decides. */
static Err other_settings(const PlanVerb *v, const char ***out, int *n)
{
    TRY(ARENA_NEW(v->arena, v->args.n_set, out));
    *n = 0;
    for (int i = 0; i < v->args.n_set; i++) {
        char section[64] = "", name[64] = "";
        const int words = sscanf(v->args.set[i], "%63[a-z_].%63[a-z_]", section, name);
        const int key = words == 2 ? key_find(section, name) : -1;
        if (key >= 0 && (plan_decides((KeyId)key) || key == KEY_run_ranks)) continue;
        (*out)[(*n)++] = v->args.set[i];
    }
    return OK;
}

static Err load_plan(const PlanVerb *v, const char *text, Config *out, JobSettings *job)
{
    const char **set;
    int n;
    ModelConfig *model;
    TRY(other_settings(v, &set, &n));
    const ConfigSource from = {.file = v->args.file,
                               .plan = v->flag.out ? v->flag.out : "the plan",
                               .set = set,
                               .n_set = n,
                               .plan_text = text};
    TRY(ARENA_NEW(v->arena, 1, &model));
    TRY(config_open(&from, v->arena, out));
    TRY(config_model(out, v->arena, model));
    return config_job(out, model, job);
}

/* Checks that the plan file describes the point that was searched. */
static Err check_same(const JobSettings *job, const JobSettings *want)
{
    const ParallelSettings *a = &job->parallel, *b = &want->parallel;
    const bool same = a->mesh.dp_shard == b->mesh.dp_shard && a->mesh.tp == b->mesh.tp &&
                      a->mesh.cp == b->mesh.cp && a->mesh.pp == b->mesh.pp && a->zero == b->zero &&
                      a->sequence == b->sequence && a->context == b->context &&
                      a->chunks == b->chunks && job->micros == want->micros &&
                      job->batch.sequences == want->batch.sequences &&
                      job->compile.recompute == want->compile.recompute;
    if (same) return OK;
    return err_fail(ERR_CHECK, "plan: the plan file differs from the plan; this is a bug of Sheaf");
}

static double device_bytes(const PlanVerb *v, const Simulation *s)
{
    double most = 0;
    for (int i = 0; i < s->n; i++) {
        const double bytes =
            (double)rank_count_bytes(&s->class[i].count, v->space.cluster->host_memory);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Links all ranks of the best plan and times it with the clock. */
static Err examine(PlanVerb *v, const JobSettings *job)
{
    PlanReport *r = &v->report;
    Mesh mesh;
    Simulation all;
    TRY(job_mesh(job, &mesh));
    const SimulateInput in = {.job = job,
                              .mesh = &mesh,
                              .save = counted_saves(v),
                              .validates = r->config->run_valid_every > 0};
    TRY(simulate(&in, v->arena, v->temp, &all));
    r->memory_bytes = device_bytes(v, &all);
    if (r->memory_bytes > r->limit_bytes)
        return err_fail(ERR_CHECK,
                        "plan: the best plan needs %.0f bytes on some rank, and %.0f on the first "
                        "ranks of its stages; this is a bug of Sheaf",
                        r->memory_bytes, r->row[0].memory_bytes);
    const ClockInput clock = {.cluster = v->space.cluster, .job = job, .mesh = &mesh};
    return clock_step(&clock, v->arena, v->temp, &r->clock);
}

static Err text_of(const PlanVerb *v, const Config *c, const PlanPrediction *p, const char **out)
{
    Text t = text_in(v->arena);
    TRY(plan_file_text(c, v->report.model, p, v->temp, &t));
    return text_done(&t, out);
}

static Err finish(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const double start = now_s();
    const JobSettings want = plan_job(&v->space, &r->row[0].point);
    const char *text;
    Config *c;
    JobSettings job;
    TRY(ARENA_NEW(v->arena, 2, &c));
    TRY(plan_config_of(r->config, &r->row[0].point, v->arena, &c[0]));
    TRY(text_of(v, &c[0], NULL, &text));
    TRY(load_plan(v, text, &c[1], &job));
    TRY(check_same(&job, &want));
    TRY(examine(v, &job));
    r->best_config = &c[1];
    const PlanPrediction p = {.cluster = v->space.cluster->name,
                              .step_ms = 1e3 * r->row[0].time.step_s,
                              .bound_ms = 1e3 * r->row[0].bound_s,
                              .memory_bytes = (int64_t)r->memory_bytes};
    TRY(text_of(v, &c[1], &p, &r->plan));
    r->link_s = now_s() - start;
    return OK;
}

/* ---- output ---- */

static Err write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    const bool good = f && fputs(text, f) >= 0 && fflush(f) == 0;
    if (f && fclose(f) == 0 && good) return OK;
    return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static Err print_report(PlanVerb *v)
{
    const char *text;
    Text t = text_in(v->arena);
    TRY((v->flag.json ? plan_report_json : plan_report_text)(&v->report, v->temp, &t));
    TRY(text_done(&t, &text));
    if (v->flag.out) TRY(write_file(v->flag.out, v->report.plan));
    if (v->flag.svg) TRY(plan_report_svg(&v->report, v->flag.svg, v->temp));
    fputs(text, stdout);
    if (v->flag.out && !v->flag.json)
        printf("\nwritten to %s; train with: sheaf train %s --plan %s\n", v->flag.out,
               v->args.file ? v->args.file : "...", v->flag.out);
    return OK;
}

static Err open_space(PlanVerb *v)
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
    if (config->numerics_fold > 1)
        return err_fail(ERR_CONFIG, "plan: numerics.fold=%lld is for one rank; set numerics.fold=1",
                        (long long)config->numerics_fold);
    v->job.compile.prepack = NULL;
    v->job.parallel.evict = false;
    r->config = config;
    r->model = model;
    r->cluster = cluster;
    v->space = (PlanSpace){.base = &v->job, .cluster = cluster, .global = config->batch_global};
    TRY(plan_fixed_of(config, &v->space.fixed));
    TRY(read_gpus(v, (int)config->run_ranks));
    TRY(check_ranks(v, config));

    TRY(read_objective(v));
    return read_limits(v);
}

static Err plan_request(PlanVerb *v, int argc, char **argv)
{
    PlanFlags *f = &v->flag;
    const Flag flags[] = {{"--cluster", &f->cluster, NULL},
                          {"--gpus", &f->gpus, NULL},
                          {"--memory", &f->memory, NULL},
                          {"--objective", &f->objective, NULL},
                          {"--explain-choice", &f->choice, NULL},
                          {"-o", &f->out, NULL},
                          {"--frontier", NULL, &f->frontier},
                          {"--svg", &f->svg, NULL},
                          {"--top", &f->top, NULL},
                          {"--nodes", &f->nodes, NULL},
                          {"--json", NULL, &f->json}};
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, v->arena, &v->args));
    if (f->out) TRY(new_file_try("-o", f->out));
    if (f->svg) TRY(new_file_try("--svg", f->svg));
    if (f->out && f->svg && strcmp(f->out, f->svg) == 0)
        return err_fail(ERR_CONFIG, "-o and --svg both name %s; give each a file of its own",
                        f->out);
    f->frontier = f->frontier || f->svg;
    TRY(open_space(v));
    TRY(plan_cache_open(v->arena, &v->cache));
    TRY(search_all(v));
    TRY(finish(v));
    return print_report(v);
}

int verb_plan(int argc, char **argv)
{
    static PlanVerb v; /* large */
    Arena arena = {0}, temp = {0};
    v = (PlanVerb){.arena = &arena, .temp = &temp};
    Err err = arena_open(&arena, "plans", ARENA_PLENTY);
    if (err == OK) err = arena_open(&temp, "compiler", ARENA_PLENTY);
    if (err == OK) err = plan_request(&v, argc, argv);
    arena_close(&temp);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
