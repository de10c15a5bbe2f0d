/* best.c -- the best plan of a search, as `sheaf train --plan` would read it: written as a
 * plan file, read again, linked on all ranks, and timed by the clock. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/config/job.h"
#include "cli/plan/verb.h"
#include "plan/simulate.h"

/* The arguments without those that the plan decides. */
Err plan_other_settings(const PlanVerb *v, const char ***out, int *n)
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
    TRY(plan_other_settings(v, &set, &n));
    const ConfigSource from = {.file = v->args.file,
                               .plan = v->flag.out ? v->flag.out : "the plan",
                               .set = set,
                               .n_set = n,
                               .plan_text = text};
    TRY(ARENA_NEW(v->arena, 1, &model));
    TRY(config_open(&from, v->arena, out));
    TRY(config_model(out, v->arena, model));
    TRY(config_job(out, model, job));
    TRY(config_cluster_device(out, v->space.cluster, job));
    return OK;
}

static bool same_text(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

static bool same_units(const JobSettings *a, const JobSettings *b)
{
    for (int u = 0; u < (int)a->config->n_layers + 2; u++) {
        const UnitOptions x = job_unit_options(a, u), y = job_unit_options(b, u);
        if (x.zero != y.zero || !same_text(x.zero_weights, y.zero_weights) ||
            x.recompute != y.recompute || x.sequence != y.sequence ||
            x.keep_gathered != y.keep_gathered || !x.offload_names != !y.offload_names ||
            !same_text(x.fp8_names, y.fp8_names))
            return false;
    }
    return true;
}

/* Checks that the plan file describes the point that was searched. */
static Err check_same(const JobSettings *job, const JobSettings *want)
{
    const ParallelSettings *a = &job->parallel, *b = &want->parallel;
    const bool same = a->mesh.dp_shard == b->mesh.dp_shard && a->mesh.tp == b->mesh.tp &&
                      a->mesh.dp_replicate == b->mesh.dp_replicate && a->mesh.cp == b->mesh.cp &&
                      a->mesh.pp == b->mesh.pp && a->mesh.ep == b->mesh.ep &&
                      a->mesh.etp == b->mesh.etp && a->context == b->context &&
                      a->chunks == b->chunks && job->micros == want->micros &&
                      job->batch.sequences == want->batch.sequences &&
                      same_text(a->tp_weights, b->tp_weights) && same_units(job, want);
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

/* Each rank fits its own device, if devices differ. */
static Err check_devices(const PlanVerb *v, const Simulation *s)
{
    for (int rank = 0; s->class_of && rank < s->mesh->world; rank++) {
        const double limit = cluster_memory_bytes(v->ordered, rank);
        const size_t bytes =
            rank_count_bytes(&s->class[s->class_of[rank]].count, v->space.cluster->host_memory);
        if ((double)bytes > limit)
            return err_fail(ERR_CHECK,
                            "plan: rank %d of the best plan needs %zu bytes, and its device has "
                            "%.0f; this is a bug of Sheaf",
                            rank, bytes, limit);
    }
    return OK;
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
                              .save = plan_saves(v),
                              .validates = r->config->run_valid_every > 0,
                              .each_rank = cluster_has_devices(v->ordered)};
    TRY(simulate(&in, v->arena, v->temp, &all));
    r->memory_bytes = device_bytes(v, &all);
    TRY(check_devices(v, &all));
    if (r->memory_bytes > r->limit_bytes)
        return err_fail(ERR_CHECK,
                        "plan: the best plan needs %.0f bytes on some rank, and %.0f on the first "
                        "ranks of its stages; this is a bug of Sheaf",
                        r->memory_bytes, r->row[0].memory_bytes);
    const ClockInput clock = {
        .cluster = v->ordered, .job = job, .mesh = &mesh, .keeps_order = true};
    return clock_step(&clock, v->arena, v->temp, &r->clock);
}

static Err text_of(const PlanVerb *v, const Config *c, const PlanPrediction *p, const char **out)
{
    Text t = text_in(v->arena);
    TRY(plan_file_text(c, v->report.model, p, v->temp, &t));
    return text_done(&t, out);
}

Err plan_finish(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const double start = now_s();
    const JobSettings want = plan_job(&v->space, &r->row[0].point);
    const char *text;
    Config *c;
    JobSettings job;
    TRY(ARENA_NEW(v->arena, 2, &c));
    TRY(plan_config_of(r->config, &r->row[0].point, v->arena, &c[0]));
    TRY(plan_set_nodes(&r->row[0], v->arena, &c[0]));
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
