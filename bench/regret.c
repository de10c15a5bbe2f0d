/* regret.c -- how much slower the plan that `sheaf plan` chooses is than the one that measures the
 * fastest.
 *
 *     build/release/bench/regret sleep       36 plans and 6 choices of 2 and 4 ranks whose GEMMs
 *                                            sleep, on each of two emulated networks: needs no
 *                                            quiet machine
 *     build/release/bench/regret cpu         8 plans of 1 rank of 2 threads and 2 ranks of 1, that
 *                                            compute: needs a quiet machine of 2 cores
 *
 * A case is a number of ranks, a network and a limit of memory: no limit, and those that the lower
 * two thirds and the lower third of the sampled plans need. The choice is that of `sheaf plan` over
 * the whole space of the case. Plans sampled evenly from that space, and the choices, are predicted
 * (the coarse clock), linked, and measured: the median of 3 steps after one that touches all
 * memory. The regret of a choice is its measured time over the shortest measured time of the plans
 * that fit, less 1.
 *
 * sleep: as bench/accuracy: GEMMs return after their flops at a fixed rate, transfers after their
 * bytes. cpu: rates of `sheaf profile --quick`, taken before.
 *
 * Plans that measure more than a twentieth apart from their prediction are listed. The exit status
 * is 1 if the mean regret of sleep is above 1.5%, one above 5%, or the rank correlation of
 * predicted and measured times of a network below 0.95. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "model/config.h"
#include "plan/search/search.h"
#include "support/job_threads.h"
#include "support/profiled.h"

enum { STEPS = 3, MAX_PLANS = 64, MAX_CASES = 32, GLOBAL = 8, SEQ_LEN = 32 };
static const double MAX_MEAN = 0.015, MAX_ONE = 0.05, MIN_SPEARMAN = 0.95, MAX_CPU = 0.05;
static const double GEMM_FLOPS_PER_S = 1e8;
static const double LINK_BPS[] = {1e6, 5e6};

typedef struct {
    PlanPoint point;
    double planned_s, measured_s, bytes;
} RegretPlan;

typedef struct {
    const Device *device;
    ModelConfig config;
    JobSettings base;
    Cluster cluster;
    PlanSpace space;
    PlanSearch search;
    int threads;
    double link_Bps; /* 0: real links */
    Arena arena, temp;
    RegretPlan plan[MAX_PLANS];
    int n;
    double regret[MAX_CASES];
    int n_cases;
    bool holds;
} Regret;

static Err load_model(const char *layers, const char *width, Arena *a, ModelConfig *out)
{
    const ModelField set[] = {{"n_layer", layers, "bench", 2},
                              {"n_embd", width, "bench", 2},
                              {"n_head", "4", "bench", 2},
                              {"vocab_size", "256", "bench", 2}};
    return model_config_load("gpt2-tiny", set, 4, a, out);
}

static JobSettings base_settings(const ModelConfig *config, int64_t seq_len)
{
    return (JobSettings){
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {1, seq_len},
        .micros = 1,
        .schedule = "1f1b",
        .optim =
            {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .block = 64},
        .parallel = {.mesh = {.dp_shard = 1}}};
}

/* Only GEMMs and links take time. */
static Cluster sleepy_cluster(double link_Bps)
{
    Cluster c = {.name = "sleepy", .overlaps = true, .memory_bytes = 1e12};
    for (int k = 0; k < N_WORK_CLASSES; k++)
        for (int t = 0; t < N_DTYPES; t++)
            c.rates.flops_per_s[k][t] = k == WORK_GEMM ? GEMM_FLOPS_PER_S : 1e18;
    c.rates.memory_Bps = c.rates.host_Bps = 1e18;
    c.rates.n_levels = 1;
    c.rates.level[0] = (CostLink){.Bps = link_Bps};
    return c;
}

static Err open_search(Regret *r, int ranks)
{
    r->space = (PlanSpace){.base = &r->base,
                           .cluster = &r->cluster,
                           .global = GLOBAL,
                           .ranks = ranks,
                           .max_micro = 2,
                           .min_tokens = 1 << 20, /* no cp: attention takes no time here */
                           .fixed = plan_fixed_none()};
    r->search = (PlanSearch){.space = r->space,
                             .max_played = 3000,
                             .max_linked = 400,
                             .arena = &r->arena,
                             .temp = &r->temp};
    TRY(plan_cache_open(&r->arena, &r->search.cache));
    return plan_search_open(&r->search);
}

static Err measure(const Regret *r, const PlanPoint *p, double *out)
{
    double seconds[STEPS];
    TRY(job_threads_run(&(JobThreads){.job = plan_job(&r->space, p),
                                      .device = r->device,
                                      .threads = r->threads,
                                      .steps = STEPS,
                                      .delay_Bps = r->link_Bps},
                        seconds));
    *out = median_of(seconds, STEPS);
    return OK;
}

static Err name_plan(Regret *r, const PlanPoint *p, const char **out)
{
    Text t = text_in(&r->arena);
    plan_point_text(p, &t);
    return text_done(&t, out);
}

/* Predicts, links and measures a point of the space, unless the compiler refuses it. */
static Err add_plan(Regret *r, const PlanPoint *point)
{
    RegretPlan *to = &r->plan[r->n];
    PlanPoint settled = *point;
    const PlanPoint *p = &settled;
    CoarseTime time;
    bool differs;
    TRY(plan_settle(&r->search, &settled, &differs));
    const Err err = plan_time(&r->search, p, &time);
    if (err == ERR_CONFIG) return OK;
    TRY(err);
    if (r->n == MAX_PLANS) return err_fail(ERR_CHECK, "more than %d plans", MAX_PLANS);
    *to = (RegretPlan){.point = *p, .planned_s = time.step_s};
    TRY(plan_link(&r->search, p, &to->bytes));
    TRY(measure(r, p, &to->measured_s));
    r->n++;
    return OK;
}

/* `want` points of the space, evenly over its order, which is that of its choices. */
static Err add_plans(Regret *r, int want)
{
    const int n = r->search.n;
    r->n = 0;
    for (int i = 0; i < want; i++)
        TRY(add_plan(r, &r->search.node[(int64_t)i * n / want + n / want / 2].point));
    return OK;
}

/* ---- the choice ---- */

static int by_value(const void *pa, const void *pb)
{
    const double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

/* The memory that this share of the plans does with. */
static double memory_limit(const Regret *r, double share)
{
    double bytes[MAX_PLANS];
    for (int i = 0; i < r->n; i++) bytes[i] = r->plan[i].bytes;
    qsort(bytes, (size_t)r->n, sizeof *bytes, by_value);
    return bytes[(int)(share * (r->n - 1))];
}

/* The plan that measured the fastest among those that fit. */
static const RegretPlan *fastest(const Regret *r, double limit)
{
    const RegretPlan *best = NULL;
    for (int i = 0; i < r->n; i++)
        if (r->plan[i].bytes <= limit && (!best || r->plan[i].measured_s < best->measured_s))
            best = &r->plan[i];
    return best;
}

static bool is_same_point(const PlanPoint *a, const PlanPoint *b)
{
    return memcmp(&a->mesh, &b->mesh, sizeof a->mesh) == 0 && a->micro == b->micro &&
           a->zero == b->zero && a->recompute == b->recompute && a->sequence == b->sequence &&
           strcmp(a->schedule, b->schedule) == 0 && a->chunks == b->chunks &&
           a->by_cost == b->by_cost;
}

/* What `sheaf plan` chooses from the whole space, added to the plans. */
static Err search_choice(Regret *r, double limit, int *out)
{
    PlanRanking ranking;
    TRY(plan_search(&r->search, limit, 1, false, &ranking));
    if (ranking.n == 0) return err_fail(ERR_CHECK, "the search finds no plan for %g bytes", limit);
    const PlanPoint *p = &r->search.node[ranking.node[0]].point;
    for (*out = 0; *out < r->n; ++*out)
        if (is_same_point(&r->plan[*out].point, p)) return OK;
    return add_plan(r, p);
}

static Err print_plan(Regret *r, const char *what, const RegretPlan *p)
{
    const char *name;
    TRY(name_plan(r, &p->point, &name));
    printf("    %-14s %-60s %9.1f %9.1f", what, name, 1e3 * p->planned_s, 1e3 * p->measured_s);
    return OK;
}

static Err add_case(Regret *r, double limit, int choice)
{
    const RegretPlan *chosen = &r->plan[choice], *best = fastest(r, limit);
    const double regret = chosen->measured_s / best->measured_s - 1;
    printf("  limit %.2f MiB\n", limit / 0x1p20);
    TRY(print_plan(r, "chosen", chosen));
    printf(" %+7.2f%%\n", 100 * regret);
    if (best != chosen) {
        TRY(print_plan(r, "measured best", best));
        printf("\n");
    }
    r->regret[r->n_cases++] = regret;
    return OK;
}

/* Ranks of equal values are the mean of their positions. */
static double rank_in(const Regret *r, int i, bool measured)
{
    double rank = 0;
    for (int k = 0; k < r->n; k++) {
        const double a = measured ? r->plan[k].measured_s : r->plan[k].planned_s;
        const double b = measured ? r->plan[i].measured_s : r->plan[i].planned_s;
        rank += a < b ? 1 : a == b ? 0.5 : 0;
    }
    return rank;
}

static double spearman(const Regret *r)
{
    double xy = 0, xx = 0, yy = 0;
    const double mean = r->n / 2.0;
    for (int i = 0; i < r->n; i++) {
        const double x = rank_in(r, i, false) - mean, y = rank_in(r, i, true) - mean;
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xy / sqrt(xx * yy);
}

static double slowest(const Regret *r)
{
    double most = 0;
    for (int i = 0; i < r->n; i++) most = fmax(most, r->plan[i].measured_s);
    return most;
}

static double mean_deviation(const Regret *r)
{
    double sum = 0;
    for (int i = 0; i < r->n; i++) sum += fabs(r->plan[i].planned_s / r->plan[i].measured_s - 1);
    return sum / r->n;
}

/* The plans whose prediction is off by more than a twentieth. */
static Err print_far(Regret *r)
{
    for (int i = 0; i < r->n; i++) {
        if (fabs(r->plan[i].planned_s / r->plan[i].measured_s - 1) < 0.05) continue;
        TRY(print_plan(r, "deviates", &r->plan[i]));
        printf("\n");
    }
    return OK;
}

/* All limits of memory on one network; real links have one. */
static Err run_cases(Regret *r, int ranks, int want, const char *network)
{
    static const double share[] = {1, 2.0 / 3, 1.0 / 3};
    const int limits = r->link_Bps > 0 ? 3 : 1;
    double limit[3];
    int choice[3];
    TRY(open_search(r, ranks));
    TRY(add_plans(r, want));
    for (int i = 0; i < limits; i++) limit[i] = memory_limit(r, share[i]);
    for (int i = 0; i < limits; i++) TRY(search_choice(r, limit[i], &choice[i]));
    const double correlation = spearman(r);
    printf("%d rank%s, %s: %d plans of %d, measured %.0f to %.0f ms; rank correlation %.3f, mean "
           "deviation %.2f%%\n",
           ranks, ranks == 1 ? "" : "s", network, r->n, r->search.n,
           1e3 * fastest(r, (double)INFINITY)->measured_s, 1e3 * slowest(r), correlation,
           100 * mean_deviation(r));
    r->holds = r->holds && (r->link_Bps == 0 || correlation >= MIN_SPEARMAN);
    TRY(print_far(r));
    for (int i = 0; i < limits; i++) TRY(add_case(r, limit[i], choice[i]));
    fflush(stdout);
    return OK;
}

static void print_head(void)
{
    printf("%-18s %-60s %9s %9s %8s\n", "", "", "plan ms", "step ms", "regret");
}

static void print_end(Regret *r, double most_mean, double most)
{
    double sum = 0, worst = 0;
    for (int i = 0; i < r->n_cases; i++) {
        sum += r->regret[i];
        if (r->regret[i] > worst) worst = r->regret[i];
    }
    r->holds = r->holds && sum / r->n_cases <= most_mean && worst <= most;
    printf("%d cases: mean regret %.2f%% (at most %.1f%%), worst %.2f%% (at most %.0f%%): %s\n",
           r->n_cases, 100 * sum / r->n_cases, 100 * most_mean, 100 * worst, 100 * most,
           r->holds ? "yes" : "NO");
}

static Err open_regret(Regret *r, const Device **cpu)
{
    r->holds = true;
    TRY(device_cpu_open(NULL, cpu));
    TRY(arena_open(&r->arena, "plans", ARENA_PLENTY));
    return arena_open(&r->temp, "compiler", ARENA_PLENTY);
}

static Err run_sleeping(Regret *r)
{
    static const int ranks[] = {2, 4}, plans[] = {12, 24};
    const Device *cpu;
    char network[32];
    TRY(open_regret(r, &cpu));
    r->device = sleepy_device(cpu, GEMM_FLOPS_PER_S);
    r->threads = 1;
    TRY(load_model("3", "64", &r->arena, &r->config));
    r->base = base_settings(&r->config, SEQ_LEN);
    print_head();
    for (int link = 0; link < 2; link++)
        for (int i = 0; i < 2; i++) {
            r->link_Bps = LINK_BPS[link];
            r->cluster = sleepy_cluster(r->link_Bps);
            snprintf(network, sizeof network, "links of %.0f MB/s", 1e-6 * r->link_Bps);
            TRY(run_cases(r, ranks[i], plans[i], network));
        }
    print_end(r, MAX_MEAN, MAX_ONE);
    return OK;
}

/* One rank of two threads, and two ranks of one. */
static Err run_computing(Regret *r)
{
    TRY(open_regret(r, &r->device));
    TRY(load_model("3", "256", &r->arena, &r->config));
    r->base = base_settings(&r->config, 128);
    print_head();
    for (int ranks = 1; ranks <= 2; ranks++) {
        double spread;
        r->threads = 3 - ranks;
        TRY(profiled_cluster(&(Profiled){r->device, ranks, r->threads}, &r->cluster, &spread));
        r->cluster.memory_bytes = 1e12;
        printf("profiled; its numbers spread by up to %.0f%%\n", 100 * spread);
        TRY(run_cases(r, ranks, 4, "this machine"));
    }
    print_end(r, MAX_CPU, MAX_CPU);
    return OK;
}

int main(int argc, char **argv)
{
    static Regret r;
    const bool sleeps = argc == 2 && strcmp(argv[1], "sleep") == 0;
    if (!sleeps && (argc != 2 || strcmp(argv[1], "cpu") != 0)) {
        fprintf(stderr, "usage: bench/regret sleep|cpu\n");
        return 2;
    }
    if ((sleeps ? run_sleeping(&r) : run_computing(&r)) != OK) {
        fprintf(stderr, "bench/regret: %s\n", err_text());
        return 1;
    }
    return !r.holds;
}
