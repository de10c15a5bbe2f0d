/* accuracy.c -- predicted and measured times of steps of our own runtime.
 *
 *     build/release/bench/accuracy sleep      30 layouts of 2 to 8 ranks whose GEMMs sleep, on an
 *                                             emulated slow network: needs no quiet machine
 *     build/release/bench/accuracy cpu        48 settings of 1 and 2 ranks that compute, with the
 *                                             constants of `sheaf profile` alone: needs a quiet
 *                                             machine of 2 cores, and a few minutes
 *     build/release/bench/accuracy cpu 8      every eighth of them
 *
 * sleep: GEMMs return after their flops at a fixed rate, and transfers after their bytes at one of
 * two rates (comm/delay.c). The clock gets these two numbers and predicts the step; everything else
 * is real: programs, schedules, overlap, waits. Other kernels of these small models take
 * microseconds beside GEMMs of tens of milliseconds. The measured time is the median of 3 steps;
 * the exit status is 1 if a layout deviates by more than 3%.
 *
 * cpu: for 1 rank of 1 thread, 1 of 2 and 2 of 1 the machine is measured as `sheaf profile --quick`
 * does, then each setting is predicted and measured in turn, the median of 5 steps. The spread
 * beside it is that of these steps. The exit status is 1 if the mean deviation is above 5%, or the
 * 95th percentile above 12%. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "plan/clock/clock.h"
#include "support/job_threads.h"
#include "support/profiled.h"

enum { SLEEP_STEPS = 3, CPU_STEPS = 5, MAX_RESULTS = 64 };
static const double MAX_DEVIATION = 0.03, MAX_MEAN = 0.05, MAX_P95 = 0.12;
static const double GEMM_FLOPS_PER_S = 1e8; /* 30 ms for the forward of a layer */
static const double LINK_BPS[] = {1e6, 5e6};

typedef struct {
    MeshSizes mesh;
    int zero, micros;
    const char *schedule;
    bool sequence;
    Recompute recompute;
} Setting;

static const Setting layouts[] = {
    {{.dp_shard = 2}, 0, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 2}, 1, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 4}, 2, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 4}, 3, 2, "1f1b", false, RECOMPUTE_SELECTIVE},
    {{.dp_replicate = 2, .dp_shard = 2}, 3, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 2}, 0, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 4}, 0, 1, "1f1b", true, RECOMPUTE_NONE},
    {{.tp = 2}, 0, 2, "1f1b", true, RECOMPUTE_FULL},
    {{.pp = 2}, 0, 4, "1f1b", false, RECOMPUTE_NONE},
    {{.pp = 4}, 0, 8, "1f1b", false, RECOMPUTE_NONE},
    {{.pp = 4}, 0, 4, "gpipe", false, RECOMPUTE_FULL},
    {{.pp = 2}, 0, 4, "zbh1", false, RECOMPUTE_NONE},
    {{.pp = 2}, 0, 4, "zbv", false, RECOMPUTE_NONE},
    {{.pp = 2, .dp_shard = 2, .tp = 2}, 1, 4, "1f1b", false, RECOMPUTE_NONE},
    {{.pp = 2, .dp_shard = 4}, 1, 4, "interleaved", false, RECOMPUTE_NONE},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

/* Settings of ranks that compute, on 1 rank and on 2; each with both models. */
static const Setting settings1[] = {
    {{.tp = 1}, 0, 1, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 1}, 0, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 1}, 0, 4, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 1}, 0, 2, "gpipe", false, RECOMPUTE_NONE},
    {{.tp = 1}, 0, 2, "1f1b", false, RECOMPUTE_SELECTIVE},
    {{.tp = 1}, 0, 2, "1f1b", false, RECOMPUTE_FULL},
    {{.tp = 1}, 0, 4, "1f1b", false, RECOMPUTE_FULL},
    {{.tp = 1}, 0, 4, "gpipe", false, RECOMPUTE_SELECTIVE},
};
static const Setting settings2[] = {
    {{.dp_shard = 2}, 0, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 2}, 1, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 2}, 2, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.dp_shard = 2}, 3, 2, "1f1b", false, RECOMPUTE_FULL},
    {{.tp = 2}, 0, 2, "1f1b", false, RECOMPUTE_NONE},
    {{.tp = 2}, 0, 2, "1f1b", true, RECOMPUTE_SELECTIVE},
    {{.pp = 2}, 0, 4, "1f1b", false, RECOMPUTE_NONE},
    {{.pp = 2}, 0, 4, "zbh1", false, RECOMPUTE_NONE},
};
enum { N_SETTINGS = 8 };
_Static_assert(sizeof settings1 == sizeof settings2, "as many for 1 rank as for 2");

/* Groups of settings that share a profile. */
static const struct {
    int ranks, threads;
    const Setting *setting;
} groups[] = {{1, 1, settings1}, {1, 2, settings1}, {2, 1, settings2}};
enum { N_GROUPS = sizeof groups / sizeof *groups };

/* A model and the length of its sequences. */
typedef struct {
    const char *preset, *layers, *width, *heads;
    int64_t seq_len;
} BenchModel;

static const BenchModel sleepy_model = {"gpt2-tiny", "2", "64", "4", 32};
static const BenchModel models[] = {{"gpt2-tiny", "4", "256", "4", 256},
                                    {"gpt2-tiny", "3", "512", "8", 128}};
enum { N_MODELS = sizeof models / sizeof *models };

static Err load_model(const BenchModel *m, Arena *a, ModelConfig *out)
{
    const ModelField set[] = {{"n_layer", m->layers, "bench", 2},
                              {"n_embd", m->width, "bench", 2},
                              {"n_head", m->heads, "bench", 2},
                              {"vocab_size", "256", "bench", 2}};
    return model_config_load(m->preset, set, 4, a, out);
}

static JobSettings job_settings(const ModelConfig *config, int64_t seq_len, const Setting *l)
{
    return (JobSettings){
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {1, seq_len},
        .micros = l->micros,
        .schedule = l->schedule,
        .compile = {.recompute = l->recompute},
        .optim =
            {.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .block = 64},
        .parallel = {.mesh = l->mesh, .zero = l->zero, .sequence = l->sequence}};
}

/* Only GEMMs and links take time. */
static Cluster sleepy_cluster(double link_Bps)
{
    Cluster c = {.name = "sleepy", .overlaps = true};
    for (int k = 0; k < N_WORK_CLASSES; k++)
        for (int t = 0; t < N_DTYPES; t++)
            c.rates.flops_per_s[k][t] = k == WORK_GEMM ? GEMM_FLOPS_PER_S : 1e18;
    c.rates.memory_Bps = c.rates.host_Bps = 1e18;
    c.rates.n_levels = 1;
    c.rates.level[0] = (CostLink){.Bps = link_Bps};
    return c;
}

static void name_setting(const Setting *l, char *out, size_t bytes)
{
    const MeshSizes *m = &l->mesh;
    snprintf(out, bytes, "pp=%d dp=%d%s tp=%d zero=%d %s m=%d%s%s", m->pp ? m->pp : 1,
             (m->dp_shard ? m->dp_shard : 1) * (m->dp_replicate ? m->dp_replicate : 1),
             m->dp_replicate ? " hsdp" : "", m->tp ? m->tp : 1, l->zero, l->schedule, l->micros,
             l->sequence ? " sequence" : "",
             l->recompute == RECOMPUTE_FULL        ? " full"
             : l->recompute == RECOMPUTE_SELECTIVE ? " selective"
                                                   : "");
}

typedef struct {
    const Device *device;
    ModelConfig config;
    int64_t seq_len;
    Cluster cluster;
    int steps, threads;
    double link_Bps; /* 0: real links */
    Arena arena, temp;
    double deviation[MAX_RESULTS];
    int n;
} Accuracy;

static Err predict(Accuracy *a, const JobSettings *job, double *out)
{
    Mesh mesh;
    StepTime time;
    TRY(mesh_sized(&job->parallel.mesh, &mesh));
    const ClockInput in = {.cluster = &a->cluster, .job = job, .mesh = &mesh};
    TRY(clock_step(&in, &a->arena, &a->temp, &time));
    *out = time.step_s;
    return OK;
}

/* Predicts and measures one setting. */
static Err compare(Accuracy *a, const Setting *l, const char *prefix)
{
    const JobSettings job = job_settings(&a->config, a->seq_len, l);
    double predicted, seconds[CPU_STEPS];
    char name[128];
    TRY(predict(a, &job, &predicted));
    TRY(job_threads_run(&(JobThreads){.job = job,
                                      .device = a->device,
                                      .threads = a->threads,
                                      .steps = a->steps,
                                      .delay_Bps = a->link_Bps},
                        seconds));
    const double measured = median_of(seconds, a->steps);
    name_setting(l, name, sizeof name);
    printf("%-18s %-48s  %9.1f  %9.1f  %+6.2f%%  %5.2f%%\n", prefix, name, 1e3 * predicted,
           1e3 * measured, 100 * (predicted / measured - 1),
           100 * (seconds[a->steps - 1] - seconds[0]) / measured);
    fflush(stdout);
    a->deviation[a->n++] = fabs(predicted / measured - 1);
    return OK;
}

static void print_head(const char *first)
{
    printf("%-18s %-48s  %9s  %9s  %7s  %6s\n", first, "", "plan ms", "step ms", "deviates",
           "spread");
}

static Err open_accuracy(Accuracy *a, const Device **cpu)
{
    TRY(device_cpu_open(NULL, cpu));
    TRY(arena_open(&a->arena, "model", ARENA_PLENTY));
    return arena_open(&a->temp, "compiler", ARENA_PLENTY);
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static Err run_sleeping(int every, bool *holds)
{
    static Accuracy a;
    const Device *cpu;
    TRY(open_accuracy(&a, &cpu));
    a.device = sleepy_device(cpu, GEMM_FLOPS_PER_S);
    a.steps = SLEEP_STEPS;
    a.threads = 1;
    a.seq_len = sleepy_model.seq_len;
    TRY(load_model(&sleepy_model, &a.arena, &a.config));
    print_head("GEMMs sleep");
    for (int i = 0; i < 2 * N_LAYOUTS; i += every) {
        char link[32];
        a.link_Bps = LINK_BPS[i % 2];
        a.cluster = sleepy_cluster(a.link_Bps);
        snprintf(link, sizeof link, "%.0f MB/s", 1e-6 * a.link_Bps);
        TRY(compare(&a, &layouts[i / 2], link));
    }
    const double mean = mean_of(a.deviation, a.n);
    median_of(a.deviation, a.n); /* sorts */
    const double worst = a.deviation[a.n - 1];
    printf("%d layouts: mean %.2f%%, worst %.2f%%; at most %.0f%%: %s\n", a.n, 100 * mean,
           100 * worst, 100 * MAX_DEVIATION, worst <= MAX_DEVIATION ? "yes" : "NO");
    *holds = worst <= MAX_DEVIATION;
    return OK;
}

/* ---- ranks that compute ---- */

/* As `sheaf profile --quick --ranks N`. */
static Err profile_group(Accuracy *a, int ranks, int threads)
{
    double worst;
    TRY(profiled_cluster(&(Profiled){a->device, ranks, threads}, &a->cluster, &worst));
    a->threads = threads;
    printf("%d rank%s of %d thread%s: profiled; its numbers spread by up to %.0f%%\n", ranks,
           ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s", 100 * worst);
    return OK;
}

static Err run_group(Accuracy *a, int group, int every)
{
    bool profiled = false;
    for (int i = 0; i < N_SETTINGS * N_MODELS; i++) {
        const BenchModel *m = &models[i % N_MODELS];
        char name[32];
        if ((group * N_SETTINGS * N_MODELS + i) % every != 0) continue;
        if (!profiled) TRY(profile_group(a, groups[group].ranks, groups[group].threads));
        profiled = true;
        const size_t mark = arena_mark(&a->arena);
        TRY(load_model(m, &a->arena, &a->config));
        a->seq_len = m->seq_len;
        snprintf(name, sizeof name, "%s x %s, %d x %d", m->layers, m->width, groups[group].ranks,
                 groups[group].threads);
        TRY(compare(a, &groups[group].setting[i / N_MODELS], name));
        arena_rewind(&a->arena, mark);
    }
    return OK;
}

static Err run_computing(int every, bool *holds)
{
    static Accuracy a;
    TRY(open_accuracy(&a, &a.device));
    a.steps = CPU_STEPS;
    print_head("layers x width");
    for (int g = 0; g < N_GROUPS; g++) TRY(run_group(&a, g, every));
    const double mean = mean_of(a.deviation, a.n);
    median_of(a.deviation, a.n); /* sorts */
    const double p95 = a.deviation[(95 * a.n + 99) / 100 - 1];
    *holds = mean <= MAX_MEAN && p95 <= MAX_P95;
    printf("%d settings: mean %.2f%% (at most %.0f%%), p95 %.2f%% (at most %.0f%%): %s\n", a.n,
           100 * mean, 100 * MAX_MEAN, 100 * p95, 100 * MAX_P95, *holds ? "yes" : "NO");
    return OK;
}

int main(int argc, char **argv)
{
    const int every = argc > 2 ? atoi(argv[2]) : 1;
    const bool sleeps = argc > 1 && strcmp(argv[1], "sleep") == 0;
    bool holds = false;
    if (argc < 2 || argc > 3 || (!sleeps && strcmp(argv[1], "cpu") != 0) || every < 1) {
        fprintf(stderr, "usage: bench/accuracy sleep|cpu [EVERY]\n");
        return 2;
    }
    if ((sleeps ? run_sleeping(every, &holds) : run_computing(every, &holds)) != OK) {
        fprintf(stderr, "bench/accuracy: %s\n", err_text());
        return 1;
    }
    return !holds;
}
