/* explain_json.c -- an explanation as data: one object, keys in the order in which they are set.
 *
 *     version, sheaf, rank, model, plan, units, programs, actions, memory, flops, bytes
 *
 * Numbers are whole: bytes, elements, flops at full extents. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "cli/explain.h"
#include "cli/verbs.h"
#include "schedule/textform.h"

/* json_object_set_new takes the value, also when it fails; a NULL value makes it fail. */
static void set(json_t *o, const char *key, json_t *value) { json_object_set_new(o, key, value); }
static void set_text(json_t *o, const char *key, const char *s) { set(o, key, json_string(s)); }
static void set_count(json_t *o, const char *key, int64_t n) { set(o, key, json_integer(n)); }
static void set_bytes(json_t *o, const char *key, size_t n)
{
    set(o, key, json_integer((json_int_t)n));
}
static void set_flops(json_t *o, const char *key, double n)
{
    set(o, key, json_integer((json_int_t)n));
}

static json_t *model_json(const Facts *f)
{
    const ModelConfig *c = f->model;
    json_t *o = json_object();
    set_text(o, "name", c->name);
    set_text(o, "family", family_name(c->family));
    set_count(o, "layers", c->n_layers);
    set_count(o, "width", c->width);
    set_count(o, "ff_width", c->ff_width);
    set_count(o, "heads", c->n_heads);
    set_count(o, "kv_heads", c->n_kv_heads);
    set_count(o, "head_size", c->head_size);
    set_count(o, "vocab", c->vocab);
    set_count(o, "max_positions", c->max_positions);
    set(o, "tied", json_boolean(c->tied));
    set_count(o, "parameters", model_param_count(&f->job->model));
    return o;
}

static json_t *plan_json(const Facts *f)
{
    const JobSettings *s = &f->job->settings;
    const View *v = &f->job->mesh.view[VIEW_DENSE];
    json_t *o = json_object(), *mesh = json_object();
    for (int i = 0; i < v->n_axes; i++) set_count(mesh, v->name[i], v->size[i]);
    set(o, "mesh", mesh);
    set_count(o, "ranks", f->job->mesh.world);
    set_text(o, "device", f->device);
    set_text(o, "precision", dtype_name(s->dtype));
    set_text(o, "schedule", s->schedule);
    set_count(o, "micros", s->micros);
    set_count(o, "sequences_per_micro", s->batch.sequences);
    set_count(o, "seq_len", s->batch.seq_len);
    set_count(o, "tokens_per_micro", f->tokens_micro);
    set_count(o, "tokens_per_step", f->tokens_step);
    set_text(o, "recompute", recompute_text(&s->compile));
    set_text(o, "offload", s->compile.offload_names ? s->compile.offload_names : "none");
    set_text(o, "optimizer", s->optim.kind == OPTIM_ADAMW ? "adamw" : "sgd");
    return o;
}

static json_t *units_json(const Model *m)
{
    json_t *list = json_array();
    for (int u = 0; u < m->n_units; u++) {
        const Unit *unit = &m->unit[u];
        json_t *o = json_object(), *names = json_array();
        for (int i = 0; i < unit->n_params; i++)
            json_array_append_new(names, json_string(m->param[unit->param[i]].name));
        set_text(o, "name", unit->name);
        set_text(o, "kind", m->kind[unit->kind].kind);
        set(o, "parameters", names);
        set_count(o, "elements", unit->pack_count);
        set_bytes(o, "bytes", (size_t)unit->pack_count * dtype_bytes(m->dtype));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *actions_json(const Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    char text[ACTION_TEXT_BYTES];
    json_t *list = json_array();
    for (int i = 0; i < lp->n; i++) {
        const Linked *l = &lp->list[i];
        json_t *o = json_object(), *base = json_object();
        set_text(o, "action", action_text(&l->action, f->job->units.slices, text));
        if (l->action.kind != A_NORM && l->action.kind != A_BIND)
            set_text(o, "unit", lp->model->unit[l->action.unit].name);
        for (int r = 0; r <= REGION_DY && l->program; r++)
            if (l->base[r] != NO_BASE) set_bytes(base, region_name((Region)r), l->base[r]);
        if (l->program)
            set(o, "base", base);
        else
            json_decref(base);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *work_json(const Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    char text[ACTION_TEXT_BYTES];
    json_t *o = json_object(), *at = json_object(), *by = json_object();
    set_bytes(o, "bytes", lp->bytes[ARENA_WORK]);
    set_bytes(o, "live_bytes", lp->live[ARENA_WORK]);
    set_count(at, "index", lp->peak_at);
    set_text(at, "action", action_text(&lp->list[lp->peak_at].action, f->job->units.slices, text));
    set(o, "peak_at", at);
    for (int r = 0; r < N_OWN_REGIONS; r++)
        if (r != REGION_HOST) set_bytes(by, region_name((Region)r), lp->peak_region[r]);
    set(o, "peak_regions", by);
    return o;
}

static json_t *memory_json(const Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    json_t *o = json_object(), *state = json_object(), *step = json_object(), *host = json_object();
    set_bytes(state, "bytes", lp->bytes[ARENA_STATE]);
    set_bytes(state, "weights", f->weights);
    set_bytes(state, "moments", f->moments);
    set(o, "state", state);
    set_bytes(step, "bytes", lp->bytes[ARENA_STEP]);
    set_bytes(step, "gradients", f->gradients);
    set_bytes(step, "inputs", f->inputs);
    set_bytes(step, "other", f->other);
    set(o, "step", step);
    set(o, "work", work_json(f));
    set_bytes(host, "bytes", lp->bytes[ARENA_HOST]);
    set_bytes(host, "live_bytes", lp->live[ARENA_HOST]);
    set(o, "host", host);
    set_bytes(o, "total_bytes", f->total);
    return o;
}

static json_t *flops_json(const Facts *f)
{
    json_t *o = json_object();
    set_flops(o, "forward", f->flops_forward);
    set_flops(o, "backward", f->step.flops - f->flops_forward);
    set_flops(o, "recomputed", f->step.flops_again);
    set_flops(o, "all", f->step.flops + f->step.flops_again);
    set_flops(o, "formula", f->flops_formula);
    return o;
}

static json_t *all_json(const Facts *f)
{
    json_t *o = json_object(), *bytes = json_object(), *programs = json_array();
    for (int k = 0; k < f->job->model.n_kinds; k++)
        if (f->only < 0 || f->only == k) json_array_append_new(programs, program_json(f, k));
    set_count(o, "version", 1);
    set_text(o, "sheaf", SHEAF_VERSION);
    set_count(o, "rank", 0);
    set(o, "model", model_json(f));
    set(o, "plan", plan_json(f));
    set(o, "units", units_json(&f->job->model));
    set(o, "programs", programs);
    set(o, "actions", actions_json(f));
    set(o, "memory", memory_json(f));
    set(o, "flops", flops_json(f));
    set_bytes(bytes, "compute", f->step.bytes);
    set_bytes(bytes, "copied", f->step.bytes_copied);
    set(o, "bytes", bytes);
    return o;
}

Err json_text(struct json_t *value, Text *out)
{
    char *dump = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    json_decref(value);
    if (!dump) return err_fail(ERR_NOMEM, "no memory to write the explanation as JSON");
    text_add(out, "%s\n", dump);
    free(dump);
    return OK;
}

Err explain_json(const Facts *f, Text *out) { return json_text(all_json(f), out); }
