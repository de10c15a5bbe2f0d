/* cuda_accuracy.c -- predicted and measured times of training steps on a GPU.
 *
 *     cuda_accuracy                     measures the rates of the card first, as `sheaf profile
 *                                       --device cuda --quick` does
 *     cuda_accuracy cluster=card.yaml   takes them from its file
 *     cuda_accuracy only=0,3,11         of the settings, those with these numbers
 *
 * Six shapes (bench/README.md, "Training steps on a GPU") and ten other sizes and recompute
 * settings, bf16 with f32 master weights. Each is predicted with the rates alone
 * (plan/clock/clock.h), then run: warm= seconds, then the median of steps=5, with their spread. The
 * exit status is 1 if the mean deviation is above 4%. autotune=FILE keeps the algorithms of GEMMs
 * for the settings that follow, and for the next run. ops=FILE gets a line for each kind of work:
 * predicted seconds, and those of one more step that is launched op by op. object=FILE is another
 * sheaf-cuda.so. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/registry.h"
#include "plan/clock/clock.h"
#include "plan/cluster/cluster.h"
#include "support/adamw.h"
#include "support/clock.h"
#include "support/inputs.h"
#include "support/job_threads.h"
#include "support/profiled.h"
#include "support/works.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* next to this program */
#endif

enum { MAX_STEPS = 100, MAX_EVENTS = 1 << 16 };
static const double MAX_MEAN = 0.04;

typedef struct {
    const char *model;
    int64_t sequences, seq_len;
    const char *vocab;
    Recompute recompute;
} Setting;

/* Neighbours have GEMMs of the same shapes. */
static const Setting settings[] = {
    {"gpt2-124m", 64, 1024, "50304", RECOMPUTE_NONE},
    {"gpt2-124m", 64, 1024, "50304", RECOMPUTE_FULL},
    {"gpt2-124m", 128, 512, "50304", RECOMPUTE_NONE},
    {"gpt2-350m", 32, 1024, "50304", RECOMPUTE_NONE},
    {"gpt2-350m", 32, 1024, "50304", RECOMPUTE_SELECTIVE},
    {"gpt2-350m", 32, 1024, "50304", RECOMPUTE_FULL},
    {"gpt2-774m", 32, 1024, "50304", RECOMPUTE_NONE},
    {"gpt2-774m", 32, 1024, "50304", RECOMPUTE_SELECTIVE},
    {"gpt2-1558m", 16, 1024, "50304", RECOMPUTE_NONE},
    {"gpt2-1558m", 16, 1024, "50304", RECOMPUTE_SELECTIVE},
    {"gpt2-1558m", 16, 1024, "50304", RECOMPUTE_FULL},
    {"llama3.2-1b", 8, 4096, "128256", RECOMPUTE_NONE},
    {"llama3.2-1b", 8, 4096, "128256", RECOMPUTE_FULL},
    {"llama3.2-1b", 16, 2048, "128256", RECOMPUTE_NONE},
    {"llama3.2-1b", 1, 32768, "128256", RECOMPUTE_NONE},
    {"llama3.2-1b", 1, 32768, "128256", RECOMPUTE_SELECTIVE},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct {
    const char *cluster, *autotune, *ops, *only, *object;
    int steps;
    double warm;
} Options;

typedef struct {
    Options o;
    const Device *device;
    Team *team;
    Arena kept, arena, temp; /* kept: the cluster; the others are rewound for each setting */
    Cluster cluster;
    ModelConfig config;
    JobSettings job_settings;
    Job job;
    Rank rank;
    RankTrace trace;
    int64_t steps; /* of the rank so far */
    FILE *ops;
    double deviation[N_SETTINGS];
    int n;
} Accuracy;

static const char *recompute_name(Recompute r)
{
    return r == RECOMPUTE_FULL ? "full" : r == RECOMPUTE_SELECTIVE ? "selective" : "none";
}

static Err set_job(Accuracy *a, const Setting *s)
{
    const ModelField vocab = {"vocab_size", s->vocab, "vocab", 5};
    TRY(model_config_load(s->model, &vocab, 1, &a->arena, &a->config));
    a->job_settings = (JobSettings){.kind = JOB_STEP,
                                    .config = &a->config,
                                    .dtype = BF16,
                                    .batch = {s->sequences, s->seq_len},
                                    .micros = 1,
                                    .causal = true,
                                    .schedule = "1f1b",
                                    .compile = {.device_memory = true, .recompute = s->recompute},
                                    .optim = bench_adamw};
    return OK;
}

static Err predict(Accuracy *a, StepTime *out)
{
    Mesh mesh;
    TRY(mesh_sized(&a->job_settings.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = &a->cluster, .job = &a->job_settings, .mesh = &mesh};
    return clock_step(&in, &a->arena, &a->temp, out);
}

static Err autotune(Accuracy *a)
{
    const DeviceAutotune *tune = a->device->runtime->autotune;
    const char *file = a->o.autotune;
    if (file && access(file, R_OK) == 0) TRY(tune->load(a->rank.context, file));
    tune->measure(a->rank.context, true);
    TRY(rank_autotune(&a->rank));
    tune->measure(a->rank.context, false);
    return file ? tune->save(a->rank.context, file) : OK;
}

static Err step(Accuracy *a, double *seconds)
{
    StepResult result;
    const double start = now_s();
    TRY(rank_step(&a->rank, &(StepSettings){.step = ++a->steps, .lr = 1e-4}, &result));
    *seconds = now_s() - start;
    return OK;
}

static Err time_steps(Accuracy *a, double *seconds)
{
    double once;
    for (int i = 0; i < 2; i++) TRY(step(a, &once)); /* the second is captured */
    for (const double until = now_s() + a->o.warm; now_s() < until;) TRY(step(a, &once));
    for (int i = 0; i < a->o.steps; i++) TRY(step(a, &seconds[i]));
    return OK;
}

/* One more step, launched op by op. */
static Err write_ops(Accuracy *a, int setting)
{
    double once;
    if (!a->ops) return OK;
    a->trace.n = 0;
    a->trace.cap = MAX_EVENTS;
    TRY(step(a, &once));
    return works_write(a->ops, setting, &a->job, &a->trace, &a->cluster.rates, &a->temp);
}

/* The rank is open. */
static Err measure(Accuracy *a, int setting, const Setting *s, double *seconds)
{
    TRY(rank_init_weights(&a->rank, 1));
    inputs_fill(&a->rank, s->sequences, s->seq_len, a->config.vocab);
    TRY(autotune(a));
    TRY(time_steps(a, seconds));
    return write_ops(a, setting);
}

static Err run_setting(Accuracy *a, int setting, double *seconds)
{
    const Setting *s = &settings[setting];
    a->steps = 0;
    a->trace.n = a->trace.cap = 0;
    TRY(job_compile(&a->job_settings, &a->arena, &a->job));
    const RankSettings rank = {.program = &a->job.linked,
                               .device = a->device,
                               .team = a->team,
                               .optim = a->job.settings.optim,
                               .capture = true,
                               .trace = a->ops ? &a->trace : NULL};
    TRY(rank_open(&a->rank, &rank));
    const Err err = measure(a, setting, s, seconds);
    rank_close(&a->rank);
    return err;
}

static Err compare(Accuracy *a, int setting)
{
    const Setting *s = &settings[setting];
    const size_t mark = arena_mark(&a->arena);
    double seconds[MAX_STEPS];
    StepTime time;
    char tokens[32];
    TRY(set_job(a, s));
    TRY(predict(a, &time));
    TRY(run_setting(a, setting, seconds));
    arena_rewind(&a->arena, mark);
    const double measured = median_of(seconds, a->o.steps);
    snprintf(tokens, sizeof tokens, "%lld x %lld", (long long)s->sequences, (long long)s->seq_len);
    printf("%2d %-12s %-11s %-10s  %9.2f  %9.2f  %+6.2f%%  %5.2f%%\n", setting, s->model, tokens,
           recompute_name(s->recompute), 1e3 * time.step_s, 1e3 * measured,
           100 * (time.step_s / measured - 1),
           100 * (seconds[a->o.steps - 1] - seconds[0]) / measured);
    fflush(stdout);
    a->deviation[a->n++] = fabs(time.step_s / measured - 1);
    return OK;
}

static bool is_wanted(const Accuracy *a, int setting)
{
    char *end;
    if (!a->o.only) return true;
    for (const char *at = a->o.only; *at; at = *end == ',' ? end + 1 : end) {
        if (strtol(at, &end, 10) == setting) return true;
        if (end == at) return false;
    }
    return false;
}

static Err open_cluster(Accuracy *a)
{
    double spread;
    const char *text;
    if (a->o.cluster) return cluster_read(a->o.cluster, &a->kept, &a->cluster);
    const double start = now_s();
    const Profiled p = {.device = a->device, .ranks = 1, .threads = 1};
    TRY(profiled_cluster(&p, &a->cluster, &spread));
    a->cluster.overlaps = true;
    Text t = text_in(&a->kept);
    cluster_text(&a->cluster, &t);
    TRY(text_done(&t, &text));
    printf("%s\nprofiled in %.1f s; its numbers spread by up to %.0f%%\n", text, now_s() - start,
           100 * spread);
    return OK;
}

static Err run(Accuracy *a, bool *holds)
{
    double sum = 0;
    int failed = 0;
    TRY(arena_open(&a->kept, "cluster", ARENA_PLENTY));
    TRY(arena_open(&a->arena, "model", ARENA_PLENTY));
    TRY(arena_open(&a->temp, "compiler", ARENA_PLENTY));
    TRY(ARENA_NEW(&a->kept, MAX_EVENTS, &a->trace.at));
    device_cuda_search(getenv("PATH"));
    TRY(device_open("cuda", a->o.object, &a->device));
    TRY(open_cluster(a));
    TRY(team_open(&a->team, (int)sysconf(_SC_NPROCESSORS_ONLN), NULL));
    if (a->ops) works_head(a->ops);
    printf("%-15s %-11s %-10s  %9s  %9s  %7s  %6s\n", "", "tokens", "recompute", "plan ms",
           "step ms", "deviates", "spread");
    for (int i = 0; i < N_SETTINGS; i++)
        if (is_wanted(a, i) && compare(a, i) != OK) {
            printf("%2d %-12s %s\n", i, settings[i].model, err_text());
            failed++;
        }
    for (int i = 0; i < a->n; i++) sum += a->deviation[i] / a->n;
    *holds = failed == 0 && sum <= MAX_MEAN;
    printf("%d settings: mean %.2f%%; at most %.0f%%: %s\n", a->n, 100 * sum, 100 * MAX_MEAN,
           *holds ? "yes" : "NO");
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const struct {
        const char *key, **text;
    } table[] = {{"cluster=", &o->cluster},
                 {"autotune=", &o->autotune},
                 {"ops=", &o->ops},
                 {"only=", &o->only},
                 {"object=", &o->object}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t n = strlen(table[i].key);
        if (strncmp(word, table[i].key, n) != 0) continue;
        *table[i].text = word + n;
        return true;
    }
    if (strncmp(word, "steps=", 6) == 0)
        return (o->steps = atoi(word + 6)) > 0 && o->steps < MAX_STEPS;
    if (strncmp(word, "warm=", 5) == 0) return (o->warm = atof(word + 5)) >= 0;
    return false;
}

int main(int argc, char **argv)
{
    static Accuracy a = {.o = {.steps = 5, .warm = 1, .object = BENCH_CUDA_OBJECT}};
    bool holds = false;
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &a.o)) {
            fprintf(stderr,
                    "cuda_accuracy: \"%s\": there are cluster=FILE autotune=FILE ops=FILE "
                    "only=N,N,... steps=N warm=SECONDS object=FILE\n",
                    argv[i]);
            return 2;
        }
    if (a.o.ops && !(a.ops = fopen(a.o.ops, "w"))) {
        fprintf(stderr, "cuda_accuracy: ops=%s: cannot be written\n", a.o.ops);
        return 2;
    }
    const Err err = run(&a, &holds);
    if (a.ops) fclose(a.ops);
    if (err == OK) return !holds;
    fprintf(stderr, "cuda_accuracy: %s\n", err_text());
    return 1;
}
