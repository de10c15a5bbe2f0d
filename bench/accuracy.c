/* accuracy.c -- predicted and measured times of steps of our own runtime.
 *
 *     build/release/bench/accuracy sleep      30 layouts of 2 to 8 ranks whose GEMMs sleep, on an
 *                                             emulated slow network: needs no quiet machine
 *     build/release/bench/accuracy sleep 3    every third of them
 *
 * GEMMs return after their flops at a fixed rate, and transfers after their bytes at one of two
 * rates (comm/delay.c). The clock gets these two numbers and predicts the step; everything else is
 * real: programs, schedules, overlap, waits. Other kernels of these small models take microseconds
 * beside GEMMs of tens of milliseconds. The measured time
 * is the median of 3 steps; the exit status is 1 if a layout deviates by more than 3%. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "plan/clock.h"
#include "support/job_threads.h"

enum { STEPS = 3 };
static const double MAX_DEVIATION = 0.03;
static const double GEMM_FLOPS_PER_S = 1e8; /* 30 ms for the forward of a layer */
static const double LINK_BPS[] = {1e6, 5e6};

typedef struct {
    MeshSizes mesh;
    int zero, micros;
    const char *schedule;
    bool sequence;
    Recompute recompute;
} Layout30;

static const Layout30 layouts[] = {
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

static Err load_model(Arena *a, ModelConfig *out)
{
    const ModelField set[] = {{"n_layer", "2", "bench", 2},
                              {"n_embd", "64", "bench", 2},
                              {"n_head", "4", "bench", 2},
                              {"vocab_size", "256", "bench", 2}};
    return model_config_load("gpt2-tiny", set, 4, a, out);
}

static JobSettings job_settings(const ModelConfig *config, const Layout30 *l)
{
    return (JobSettings){
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {1, 32},
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

static void name_layout(const Layout30 *l, char *out, size_t bytes)
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
    Arena arena, temp;
} Accuracy;

static Err predict(Accuracy *a, const JobSettings *job, const Cluster *cluster, double *out)
{
    Mesh mesh;
    StepTime time;
    TRY(mesh_sized(&job->parallel.mesh, &mesh));
    const ClockInput in = {.cluster = cluster, .job = job, .mesh = &mesh};
    TRY(clock_step(&in, &a->arena, &a->temp, &time));
    *out = time.step_s;
    return OK;
}

/* One layout on one network; returns its deviation. */
static Err compare(Accuracy *a, const Layout30 *l, double link_Bps, double *deviation)
{
    const JobSettings job = job_settings(&a->config, l);
    const Cluster cluster = sleepy_cluster(link_Bps);
    double predicted, seconds[STEPS];
    char name[128];
    TRY(predict(a, &job, &cluster, &predicted));
    TRY(job_threads_run(
        &(JobThreads){
            .job = job, .device = a->device, .threads = 1, .steps = STEPS, .delay_Bps = link_Bps},
        seconds));
    const double measured = median_of(seconds, STEPS);
    *deviation = predicted / measured - 1;
    name_layout(l, name, sizeof name);
    printf("%-52s %5.1f  %9.1f  %9.1f  %+6.2f%%  %5.2f%%\n", name, 1e-6 * link_Bps, 1e3 * predicted,
           1e3 * measured, 100 * *deviation, 100 * (seconds[STEPS - 1] - seconds[0]) / measured);
    fflush(stdout);
    return OK;
}

static Err run_sleeping(int every, bool *holds)
{
    Accuracy a = {0};
    const Device *cpu;
    double sum = 0, worst = 0;
    int n = 0;
    TRY(device_cpu_open(NULL, &cpu));
    a.device = sleepy_device(cpu, GEMM_FLOPS_PER_S);
    TRY(arena_open(&a.arena, "model", ARENA_PLENTY));
    TRY(arena_open(&a.temp, "compiler", ARENA_PLENTY));
    TRY(load_model(&a.arena, &a.config));
    printf("%-52s %5s  %9s  %9s  %7s  %6s\n", "GEMMs sleep; thread-ranks", "MB/s", "plan ms",
           "step ms", "deviates", "spread");
    for (int i = 0; i < 2 * N_LAYOUTS; i += every, n++) {
        double deviation;
        TRY(compare(&a, &layouts[i / 2], LINK_BPS[i % 2], &deviation));
        sum += fabs(deviation);
        if (fabs(deviation) > worst) worst = fabs(deviation);
    }
    printf("%d layouts: mean %.2f%%, worst %.2f%%; at most %.0f%%: %s\n", n, 100 * sum / n,
           100 * worst, 100 * MAX_DEVIATION, worst <= MAX_DEVIATION ? "yes" : "NO");
    *holds = worst <= MAX_DEVIATION;
    return OK;
}

int main(int argc, char **argv)
{
    const int every = argc > 2 ? atoi(argv[2]) : 1;
    bool holds = false;
    if (argc < 2 || argc > 3 || strcmp(argv[1], "sleep") != 0 || every < 1) {
        fprintf(stderr, "usage: bench/accuracy sleep [EVERY]\n");
        return 2;
    }
    if (run_sleeping(every, &holds) != OK) {
        fprintf(stderr, "bench/accuracy: %s\n", err_text());
        return 1;
    }
    return !holds;
}
