/* simulate.c -- `sheaf simulate`: memory, bytes sent and flops of every rank. No rank is started,
 * so the machines need not exist.
 *
 *     sheaf simulate run.yaml [key=value ...] [--cluster FILE] [--plan FILE] [--trace FILE]
 *                    [--svg FILE] [--json] */
#include "cli/simulate/simulate.h"

#include <stdio.h>
#include <string.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/config/nodes.h"
#include "cli/new_file.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "plan/cluster/cluster.h"

static Err count_parameters(const JobSettings *settings, Arena *temp, int64_t *out)
{
    Model model;
    const size_t mark = arena_mark(temp);
    TRY(model_build(settings->config, settings->dtype, settings->batch, temp, &model));
    *out = model_param_count(&model);
    arena_rewind(temp, mark);
    return OK;
}

static Err open_cluster(const Config *config, const char *path, Arena *arena, const Cluster **out)
{
    Cluster *cluster;
    if (!path) return OK;
    TRY(ARENA_NEW(arena, 1, &cluster));
    TRY(cluster_read(path, arena, cluster));
    TRY(config_order_cluster(config, path, arena, cluster));
    *out = cluster;
    return OK;
}

typedef struct {
    const char *cluster, *trace, *svg;
    bool json;
} SimulateFlags;

/* Plays a step on the cluster, and once more for each file that shows it. */
static Err predict_time(SimulationReport *s, const SimulateFlags *flags, Arena *arena, Arena *temp)
{
    StepClock *clock;
    if (!s->cluster) return OK;
    const ClockInput in = {
        .cluster = s->cluster, .job = s->settings, .mesh = s->mesh, .keeps_order = true};
    TRY(clock_open(&in, arena, temp, &clock));
    TRY(clock_play(clock, s->cluster, &s->time));
    if (flags->trace) TRY(simulate_trace(s, clock, flags->trace, temp));
    return flags->svg ? simulate_svg(s, clock, flags->svg, temp) : OK;
}

static Err check_flags(const SimulateFlags *flags)
{
    const char *file = flags->trace ? flags->trace : flags->svg;
    if (file && !flags->cluster)
        return err_fail(ERR_CONFIG,
                        "%s %s: shows the time of a step; give a machine too, as --cluster "
                        "share/clusters/h100-sxm.yaml",
                        flags->trace ? "--trace" : "--svg", file);
    if (flags->trace && flags->svg && strcmp(flags->trace, flags->svg) == 0)
        return err_fail(ERR_CONFIG, "--trace and --svg both name %s; give each a file of its own",
                        flags->svg);
    if (flags->trace) TRY(new_file_try("--trace", flags->trace));
    return flags->svg ? new_file_try("--svg", flags->svg) : OK;
}

static Err simulate_config(Config *config, const SimulateFlags *flags, Arena *arena, Arena *temp)
{
    ModelConfig model;
    JobSettings settings;
    Mesh mesh;
    SimulationReport s = {.settings = &settings, .mesh = &mesh};
    const char *text;
    TRY(open_cluster(config, flags->cluster, arena, &s.cluster));
    TRY(config_model(config, temp, &model));
    TRY(config_job(config, &model, &settings));
    TRY(config_cluster(config, temp, &settings));
    TRY(config_cluster_device(config, s.cluster, &settings));
    if (s.cluster) settings.parallel.host_ranks = (int)s.cluster->rates.level[0].ranks;
    TRY(job_mesh(&settings, &mesh));
    TRY(count_parameters(&settings, temp, &s.parameters));
    ProgressLine line = progress_begin("simulating", model.name, 0);
    const SimulateInput in = {.job = &settings,
                              .mesh = &mesh,
                              .save = save_memory(config->run_save_every),
                              .validates = config->run_valid_every > 0,
                              .each_rank = s.cluster && cluster_has_devices(s.cluster),
                              .progress = progress_parts,
                              .context = &line};
    const Err err = simulate(&in, arena, temp, &s.all);
    progress_end(&line);
    TRY(err);
    TRY(predict_time(&s, flags, arena, temp));
    Text t = text_in(arena);
    if (flags->json)
        TRY(simulate_json(&s, &t));
    else
        simulate_text(&s, &t);
    TRY(text_done(&t, &text));
    fputs(text, stdout);
    return OK;
}

static Err simulate_request(int argc, char **argv, Arena *arena, Arena *temp)
{
    SimulateFlags want = {0};
    Args args;
    const Flag flags[] = {{"--json", NULL, &want.json},
                          {"--cluster", &want.cluster, NULL},
                          {"--plan", &args.plan, NULL},
                          {"--trace", &want.trace, NULL},
                          {"--svg", &want.svg, NULL}};
    Config *config;
    TRY(args_split(argc, argv, flags, 5, temp, &args));
    TRY(check_flags(&want));
    TRY(ARENA_NEW(temp, 1, &config));
    TRY(args_config(&args, temp, config));
    return simulate_config(config, &want, arena, temp);
}

int verb_simulate(int argc, char **argv)
{
    Arena arena = {0}, temp = {0};
    Err err = arena_open(&arena, "simulation", ARENA_PLENTY);
    if (err == OK) err = arena_open(&temp, "compiler", ARENA_PLENTY);
    if (err == OK) err = simulate_request(argc, argv, &arena, &temp);
    arena_close(&temp);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
