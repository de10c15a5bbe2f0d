/* explain.c -- `sheaf explain`: prints the work of a rank before it runs.
 *
 *     sheaf explain run.yaml [key=value ...] [flags]             the flags are in cli/flags.def */
#include "cli/explain/explain.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/config/keys.h"
#include "cli/machine.h"
#include "cli/new_file.h"
#include "cli/progress.h"
#include "cli/verbs.h"

typedef struct {
    const char *rank, *pass, *unit, *svg, *schedule, *context;
    bool json;
} ExplainFlags;

static Err unknown_word(const char *flag, const char *word, const char *list)
{
    return err_fail(ERR_CONFIG, "explain: %s %.80s: no such %s; there are %s", flag, word, flag + 2,
                    list);
}

/* Parses --rank: a whole number below the number of ranks. */
static Err find_rank(const char *word, const MeshSizes *sizes, int *out)
{
    Mesh mesh;
    TRY(mesh_sized(sizes, &mesh));
    const size_t digits = word ? strspn(word, "0123456789") : 0;
    const long long rank = word ? strtoll(word, NULL, 10) : 0; /* saturates on overflow */
    if (word && (digits == 0 || word[digits] || rank >= mesh.world))
        return err_fail(ERR_CONFIG,
                        "explain: --rank %.80s: the mesh has %d rank%s; give a number from 0 to %d",
                        word, mesh.world, mesh.world == 1 ? "" : "s", mesh.world - 1);
    *out = (int)rank;
    return OK;
}

static Err find_kind(const Model *m, const char *word, Arena *arena, int *out)
{
    const char *list;
    *out = -1;
    if (!word) return OK;
    Text t = text_in(arena);
    for (int k = 0; k < m->n_kinds; k++) {
        if (strcmp(m->kind[k].kind, word) == 0) *out = k;
        text_add(&t, "%s%s", k ? ", " : "", m->kind[k].kind);
    }
    TRY(text_done(&t, &list));
    return *out >= 0 ? OK : unknown_word("--unit", word, list);
}

/* Collected while a unit is compiled: the graph after the pass `pass`, and the names of all
 * passes. */
typedef struct {
    const char *pass, *graph;
    Arena *arena;
    char names[256];
} PassCapture;

static Err capture_pass(void *context, const char *pass, const Graph *g)
{
    PassCapture *w = context;
    const size_t used = strlen(w->names);
    snprintf(w->names + used, sizeof w->names - used, "%s%s", used ? ", " : "", pass);
    return strcmp(pass, w->pass) == 0 ? graph_print(g, w->arena, &w->graph) : OK;
}

static void add_graph(const PassCapture *w, const char *kind, json_t *graphs, Text *out)
{
    if (graphs)
        json_array_append_new(graphs, json_pack("{s:s, s:s}", "kind", kind, "graph", w->graph));
    else
        text_add(out, "%s\n", w->graph);
}

/* Compiles each unit again with a callback after every pass; job_compile keeps no graphs. */
static Err show_pass(const Facts *f, const char *pass, json_t *graphs, Arena *temp, Text *out)
{
    const Model *m = &f->job->model;
    for (int c = 0; c < f->job->programs.n_classes; c++) {
        const Graph *kind = &m->kind[f->job->programs.kind_of[c]];
        const CompileOptions o = job_options(f->job, c, 0);
        PassCapture w = {.pass = pass, .arena = temp};
        Program p;
        if (!facts_show(f, c)) continue;
        TRY(compile_unit(kind, &o, capture_pass, &w, temp, &p));
        if (!w.graph) return unknown_word("--pass", pass, w.names);
        add_graph(&w, kind->kind, graphs, out);
    }
    return OK;
}

static Err show_pass_json(const Facts *f, const char *pass, Arena *temp, Text *out)
{
    json_t *graphs = json_array();
    const Err err = show_pass(f, pass, graphs, temp, out);
    json_t *all = json_pack("{s:i, s:s, s:o}", "version", 1, "pass", pass, "graphs", graphs);
    if (err == OK) return json_text(all, out);
    json_decref(all);
    return err;
}

/* Compiles the job and gathers its facts, with a progress line on a terminal. */
static Err compile_facts(const JobSettings *settings, const ExplainFlags *want, Job *job, Facts *f,
                         Arena *temp)
{
    ProgressLine line = progress_begin("explaining", f->model->name, 0);
    progress_parts(&line, 0, 2);
    Err err = job_compile(settings, temp, job);
    f->job = job;
    if (err == OK) err = find_kind(&job->model, want->unit, temp, &f->only);
    progress_parts(&line, 1, 2);
    if (err == OK) err = facts_gather(f, temp);
    progress_end(&line);
    return err;
}

static Err explain(Config *config, const ExplainFlags *want, Arena *arena, Arena *temp)
{
    const char *text;
    ModelConfig model;
    JobSettings settings;
    Option device;
    Job *job;
    Facts f = {.model = &model,
               .global = config->batch_global,
               .lr = config->optim_lr,
               .save_every = config->run_save_every,
               .validates = config->run_valid_every > 0};
    TRY(config_model(config, temp, &model));
    TRY(config_job(config, &model, &settings));
    TRY(config_cluster(config, temp, &settings));
    TRY(find_rank(want->rank, &settings.parallel.mesh, &settings.parallel.rank));
    TRY(machine_choice(config, &device));
    f.device = option_text(device);
    TRY(ARENA_NEW(temp, 1, &job));
    TRY(compile_facts(&settings, want, job, &f, temp));
    if (want->svg)
        TRY(want->context ? explain_context_svg(&f, want->context, want->svg, temp)
                          : explain_svg(&f, want->svg, temp));
    if (want->schedule) TRY(explain_schedule_file(&f, want->schedule, temp));
    Text t = text_in(arena);
    if (want->context)
        TRY(explain_context_text(&f, want->context, temp, &t));
    else if (want->pass && want->json)
        TRY(show_pass_json(&f, want->pass, temp, &t));
    else if (want->pass)
        TRY(show_pass(&f, want->pass, NULL, temp, &t));
    else
        TRY(want->json ? explain_json(&f, &t) : explain_text(&f, temp, &t));
    TRY(text_done(&t, &text));
    fputs(text, stdout);
    return OK;
}

static Err explain_request(int argc, char **argv, Arena *arena, Arena *temp)
{
    ExplainFlags want = {0};
    Args args;
    const Flag flags[] = {{"--rank", &want.rank, NULL},       {"--json", NULL, &want.json},
                          {"--pass", &want.pass, NULL},       {"--unit", &want.unit, NULL},
                          {"--svg", &want.svg, NULL},         {"--schedule", &want.schedule, NULL},
                          {"--context", &want.context, NULL}, {"--plan", &args.plan, NULL}};
    Config *config;
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, temp, &args));
    if (want.context && (want.json || want.pass))
        return err_fail(ERR_CONFIG, "explain: --context prints a text of its own; leave out %s",
                        want.json ? "--json" : "--pass");
    if (want.svg) TRY(new_file_try("--svg", want.svg));
    if (want.schedule) TRY(new_file_try("--schedule", want.schedule));
    TRY(ARENA_NEW(temp, 1, &config));
    TRY(args_config(&args, temp, config));
    return explain(config, &want, arena, temp);
}

int verb_explain(int argc, char **argv)
{
    Arena arena = {0}, temp = {0};
    Err err = arena_open(&arena, "explanation", ARENA_PLENTY);
    if (err == OK) err = arena_open(&temp, "compiler", ARENA_PLENTY);
    if (err == OK) err = explain_request(argc, argv, &arena, &temp);
    arena_close(&temp);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
