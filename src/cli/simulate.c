/* simulate.c -- `sheaf simulate`: memory, bytes sent and flops of every rank. No rank is started,
 * so the machines need not exist.
 *
 *     sheaf simulate run.yaml [key=value ...] [--json] */
#include "cli/simulate.h"

#include <stdio.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/verbs.h"

static Err count_parameters(const JobSettings *settings, Arena *temp, int64_t *out)
{
    Model model;
    const size_t mark = arena_mark(temp);
    TRY(model_build(settings->config, settings->dtype, settings->batch, temp, &model));
    *out = model_param_count(&model);
    arena_rewind(temp, mark);
    return OK;
}

static Err simulate_config(const Config *config, bool json, Arena *arena, Arena *temp)
{
    ModelConfig model;
    JobSettings settings;
    Mesh mesh;
    SimulationReport s = {.settings = &settings, .mesh = &mesh};
    const char *text;
    TRY(config_model(config, temp, &model));
    TRY(config_job(config, &model, &settings));
    TRY(mesh_sized(&settings.parallel.mesh, &mesh));
    TRY(count_parameters(&settings, temp, &s.parameters));
    const SimulateInput in = {&settings, &mesh, save_memory(config->run_save_every)};
    TRY(simulate(&in, arena, temp, &s.all));
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
    const Flag flags[] = {{"--json", NULL, &json}};
    Args args;
    Config *config;
    TRY(args_split(argc, argv, flags, 1, temp, &args));
    TRY(ARENA_NEW(temp, 1, &config));
    TRY(config_load(args.file, args.set, args.n_set, temp, config));
    return simulate_config(config, json, arena, temp);
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
