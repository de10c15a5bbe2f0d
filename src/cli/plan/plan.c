/* plan.c -- `sheaf plan`: the fastest way to distribute a run over a cluster, with a certificate.
 *
 *     sheaf plan run.yaml [key=value ...] --cluster FILE [--gpus N | A..B] [--memory GIB]
 *                [--objective time|cost|energy] [--explain-choice KEY=VALUE] [-o PLAN] [--json]
 *                [--frontier] [--svg FILE] [--top N] [--alike] [--measure K]
 *
 * The best plan is written as a plan file, read again as `sheaf train --plan` would read it, linked
 * on all ranks and timed by the clock, before anything is printed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/new_file.h"
#include "cli/plan/verb.h"
#include "cli/verbs.h"

static Err print_report(PlanVerb *v)
{
    const char *text;
    Text t = text_in(v->arena);
    TRY((v->flag.json ? plan_report_json : plan_report_text)(&v->report, v->temp, &t));
    TRY(text_done(&t, &text));
    fputs(text, stdout); /* first: it has the plan, if a file cannot be written */
    if (v->flag.out) TRY(new_file_write("-o", v->flag.out, v->report.plan));
    if (v->flag.svg) TRY(plan_report_svg(&v->report, v->flag.svg, v->temp));
    if (v->flag.out && !v->flag.json)
        printf("\nwritten to %s; train with: sheaf train %s --plan %s\n", v->flag.out,
               v->args.file ? v->args.file : "...", v->flag.out);
    return OK;
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
                          {"--alike", NULL, &f->alike},
                          {"--svg", &f->svg, NULL},
                          {"--top", &f->top, NULL},
                          {"--nodes", &f->nodes, NULL},
                          {"--measure", &f->measure, NULL},
                          {"--launcher", &f->launcher, NULL},
                          {"--json", NULL, &f->json}};
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, v->arena, &v->args));
    if (f->out) TRY(new_file_try("-o", f->out));
    if (f->svg) TRY(new_file_try("--svg", f->svg));
    if (f->out && f->svg && strcmp(f->out, f->svg) == 0)
        return err_fail(ERR_CONFIG, "-o and --svg both name %s; give each a file of its own",
                        f->out);
    f->frontier = f->frontier || f->svg;
    TRY(plan_open_space(v));
    TRY(plan_cache_open(v->arena, &v->cache));
    TRY(plan_search_all(v));
    TRY(plan_measure(v));
    TRY(plan_place_nodes(v));
    TRY(plan_finish(v));
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
