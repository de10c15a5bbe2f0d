/* json.c -- an explanation as JSON: one object, keys in the order in which they are set.
 *
 *     version, sheaf, rank, ranks, coordinates, model, plan, units, programs, pipeline, actions,
 *     transfers, memory, flops, bytes
 *
 * Numbers are integers: bytes, elements, flops with full micro-batches. Only the times of
 * `pipeline` and of `plan.context` are real numbers. Spans [a, b] of a pack end before b. */
#include "cli/explain/json.h"

#include <stdlib.h>
#include "cli/context_text.h"
#include "cli/tp_text.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "job/batch.h"

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

static void set_parallel(const Facts *f, json_t *o)
{
    const ParallelSettings *p = &f->job->settings.parallel;
    const BatchSplit split = batch_split(f->job);
    json_t *numbers = json_array();
    for (int i = 0; i < split.micros; i++)
        json_array_append_new(numbers,
                              json_integer(batch_part(&split, f->global, i).first / split.each));
    set(o, "micro_numbers", numbers);
    set_count(o, "zero", p->zero);
    set_text(o, "reduce", f->job->switches[0].reduce == REDUCE_AFTER_EACH ? "each" : "last");
    set_count(o, "live", p->live ? p->live : 2);
    set(o, "sequence", json_boolean(p->sequence));
    set(o, "regather", json_boolean(!p->keep_gathered));
    set(o, "context", context_json(f->job));
    set(o, "tp_weights", tp_json(f->job));
    set_count(o, "fold", split.fold);
}

static json_t *plan_json(const Facts *f)
{
    const JobSettings *s = &f->job->settings;
    const View *v = &f->job->mesh.view[VIEW_DENSE];
    json_t *o = json_object(), *mesh = json_object();
    for (int i = 0; i < v->n_axes; i++) set_count(mesh, v->name[i], v->size[i]);
    set(o, "mesh", mesh);
    if (job_shards_experts(&s->parallel.mesh)) set(o, "experts", experts_json(f->job));
    set_count(o, "ranks", f->job->mesh.world);
    set_text(o, "device", f->device);
    set_text(o, "precision", precision_word(s->dtype, &s->compile.fp8));
    set_text(o, "schedule", s->schedule);
    set_count(o, "micros", s->micros);
    set_count(o, "sequences_per_micro", s->batch.sequences);
    set_count(o, "seq_len", s->batch.seq_len);
    set_count(o, "tokens_per_micro", f->tokens_micro);
    set_count(o, "tokens_per_step", f->tokens_step);
    const UnitOptions here = facts_options_here(f);
    set_text(o, "recompute", job_recompute_text(&here));
    set(o, "units", units_options_json(f->job));
    set_text(o, "offload", s->compile.offload_names ? s->compile.offload_names : "none");
    set_text(o, "optimizer", s->optim.kind == OPTIM_ADAMW ? "adamw" : "sgd");
    set_parallel(f, o);
    return o;
}

/* Of a pack: elements in total, of this rank's part in use, and of its home. */
static void set_pack(const Facts *f, int pack, json_t *o)
{
    const Pack *p = &f->job->model.pack[pack];
    const HomeRank *mine = &f->job->linked.pack[pack].mine;
    const size_t element = dtype_bytes(p->type.use);
    set_count(o, "elements", p->count);
    set_bytes(o, "bytes", (size_t)p->count * element);
    set_count(o, "use_elements", mine->pack_count);
    set_bytes(o, "use_bytes", (size_t)mine->pack_count * element);
    set_count(o, "home_elements", mine->shard.hi - mine->shard.lo);
    set_bytes(o, "home_bytes", (size_t)(mine->shard.hi - mine->shard.lo) * element);
    set(o, "home", span_json(mine->shard));
}

static json_t *packs_json(const Facts *f, const Unit *unit)
{
    const Model *m = &f->job->model;
    json_t *list = json_array();
    for (int p = unit->first_pack; p < unit->first_pack + unit->n_packs; p++) {
        json_t *o = json_object(), *names = json_array();
        for (int i = 0; i < m->pack[p].n_params; i++)
            json_array_append_new(names, json_string(m->param[m->pack[p].param[i]].name));
        set_count(o, "pack", p);
        set_text(o, "view", view_name(m->pack[p].view));
        set(o, "parameters", names);
        set_pack(f, p, o);
        json_array_append_new(list, o);
    }
    return list;
}

/* Per unit: its parameters, and its pack; a list of packs unless there is one. */
static json_t *units_json(const Facts *f)
{
    const Model *m = &f->job->model;
    json_t *list = json_array();
    for (int u = 0; u < m->n_units; u++) {
        const Unit *unit = &m->unit[u];
        json_t *o = json_object(), *names = json_array();
        for (int i = 0; i < unit->n_params; i++)
            json_array_append_new(names, json_string(m->param[unit->param[i]].name));
        set_text(o, "name", unit->name);
        set_text(o, "kind", m->kind[unit->kind].kind);
        set(o, "parameters", names);
        if (unit->n_packs == 1)
            set_pack(f, unit->first_pack, o);
        else
            set(o, "packs", packs_json(f, unit));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *flops_json(const Facts *f)
{
    json_t *o = json_object();
    set_flops(o, "forward", f->flops_forward);
    set_flops(o, "backward", f->step.flops - f->flops_forward);
    set_flops(o, "recomputed", f->step.flops_recomputed);
    set_flops(o, "all", f->step.flops + f->step.flops_recomputed);
    set_flops(o, "formula", f->flops_formula);
    return o;
}

static json_t *coordinates_json(const Facts *f)
{
    const View *v = &f->job->mesh.view[VIEW_DENSE];
    int coord[MAX_AXES];
    json_t *o = json_object();
    mesh_coords(&f->job->mesh, VIEW_DENSE, f->job->linked.rank, coord);
    for (int i = 0; i < v->n_axes; i++) set_count(o, v->name[i], coord[i]);
    return o;
}

/* Version 2: `prepacked` of memory.step and `recomputed` of instructions have new names. */
static json_t *all_json(const Facts *f)
{
    json_t *o = json_object(), *bytes = json_object(), *programs = json_array();
    for (int c = 0; c < f->job->programs.n_classes; c++)
        if (facts_show(f, c)) json_array_append_new(programs, program_json(f, c));
    set_count(o, "version", 2);
    set_text(o, "sheaf", SHEAF_VERSION);
    set_count(o, "rank", f->job->linked.rank);
    set_count(o, "ranks", f->job->mesh.world);
    set(o, "coordinates", coordinates_json(f));
    set(o, "model", model_json(f));
    set(o, "plan", plan_json(f));
    set(o, "units", units_json(f));
    set(o, "programs", programs);
    set(o, "pipeline", pipeline_json(f));
    set(o, "actions", actions_json(f));
    set(o, "transfers", transfers_json(f));
    set(o, "memory", memory_json(f));
    set(o, "flops", flops_json(f));
    set_bytes(bytes, "compute", f->step.bytes);
    set_bytes(bytes, "copied", f->step.bytes_copied);
    set_bytes(bytes, "sent", f->sent_bytes);
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
