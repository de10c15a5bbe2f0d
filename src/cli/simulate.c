/* simulate.c -- `sheaf simulate`: memory, bytes sent and flops of every rank. No rank is started,
 * so the machines need not exist.
 *
 *     sheaf simulate run.yaml [key=value ...] [--cluster FILE] [--json] */
#include "cli/simulate.h"

#include <stdio.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "plan/cluster.h"

static Err count_parameters(const JobSettings *settings, Arena *temp, int64_t *out)
{
    Model model;
    const size_t mark = arena_mark(temp);
    TRY(model_build(settings->config, settings->dtype, settings->batch, temp, &model));
    *out = model_param_count(&model);
    arena_rewind(temp, mark);
    return OK;
}

static Err open_cluster(const char *path, Arena *arena, const Cluster **out)
{
    Cluster *cluster;
    if (!path) return OK;
    TRY(ARENA_NEW(arena, 1, &cluster));
    TRY(cluster_read(path, arena, cluster));
    *out = cluster;
    return OK;
}

/* Plays a step on the cluster. */
static Err predict_time(SimulationReport *s, Arena *arena, Arena *temp)
{
    if (!s->cluster) return OK;
    const ClockInput in = {.cluster = s->cluster, .job = s->settings, .mesh = s->mesh};
    return clock_step(&in, arena, temp, &s->time);
}

static Err simulate_config(const Config *config, const char *cluster, bool json, Arena *arena,
                           Arena *temp)
{
    ModelConfig model;
    JobSettings settings;
    Mesh mesh;
    SimulationReport s = {.settings = &settings, .mesh = &mesh};
    const char *text;
    TRY(open_cluster(cluster, arena, &s.cluster));
    TRY(config_model(config, temp, &model));
    TRY(config_job(config, &model, &settings));
    TRY(mesh_sized(&settings.parallel.mesh, &mesh));
    TRY(count_parameters(&settings, temp, &s.parameters));
    ProgressLine line = progress_begin("simulating", model.name, 0);
    const SimulateInput in = {
        &settings,      &mesh, save_memory(config->run_save_every), config->run_valid_every > 0,
        progress_parts, &line};
    const Err err = simulate(&in, arena, temp, &s.all);
    progress_end(&line);
    TRY(err);
    TRY(predict_time(&s, arena, temp));
    Text t = text_in(arena);
    if (json)
        TRY(simulate_json(&s, &t));
    else
        simulate_text(&s, &t);
    TRY(text_done(&t, &text));
    fputs(text, stdout);
    return OK;
}

static Err simulate_request(int argc, char **argv, Arena *arena, Arena *temp)
{
    bool json = false;
    const char *cluster = NULL;
    const Flag flags[] = {{"--json", NULL, &json}, {"--cluster", &cluster, NULL}};
    Args args;
    Config *config;
    TRY(args_split(argc, argv, flags, 2, temp, &args));
    TRY(ARENA_NEW(temp, 1, &config));
    TRY(config_load(args.file, args.set, args.n_set, temp, config));
    return simulate_config(config, cluster, json, arena, temp);
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
