/* program_json.c -- a program as JSON: phases, tensors, instructions, parameters. Tensors that no
 * instruction uses, left over by passes, are omitted; ids are those of the text form. */
#include "cli/explain/json.h"

static json_t *ids(const int32_t *id, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(id[i]));
    return list;
}

static json_t *instr_json(const Facts *f, const Program *p, int index)
{
    const Instr *i = &p->instr[index];
    json_t *o = json_pack(
        "{s:s, s:i, s:s, s:s, s:b, s:o, s:o, s:I, s:I}", "phase", phase_name(i->phase), "index",
        index - p->first[i->phase], "op", op_info(i->op)->name, "queue", queue_name(i->queue),
        "recomputed", (int)i->recomputed, "in", ids(i->in, i->n_in), "out", ids(i->out, i->n_out),
        "flops", (json_int_t)i->flops, "bytes", (json_int_t)instr_bytes(i));
    if (!op_transfers(i->op)) return o;
    const Transfer t = instr_transfer(p, i);
    set(o, "transfer", transfer_json(f, &t));
    return o;
}

/* Regions that other units or the step own have no offset here: linking assigns it. */
static json_t *place_json(Place at)
{
    json_t *o = json_pack("{s:s}", "region", region_name(at.region));
    if (at.region < N_OWN_REGIONS)
        json_object_set_new(o, "offset", json_integer((json_int_t)at.offset));
    return o;
}

/* `bounded` marks dims whose live extent is a runtime scalar; `shape` has their maximum. A tensor
 * has two places: in split phases (I, then W) and in the merged phase B. */
static json_t *tensor_json(const Program *p, int32_t id)
{
    const ProgTensor *t = &p->tensor[id];
    json_t *shape = json_array(), *bounded = json_array(), *stride = json_array();
    for (int i = 0; i < t->ndim; i++) {
        json_array_append_new(shape, json_integer(t->dim[i].cap));
        json_array_append_new(bounded, json_boolean(t->dim[i].slot != NO_SLOT));
        json_array_append_new(stride, json_integer(t->stride[i]));
    }
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:i, s:o, s:o}", "id", id,
                     "name", t->name, "dtype", dtype_name(t->dtype), "space",
                     t->space == SPACE_HOST ? "host" : "device", "scope", scope_name(t->scope),
                     "shape", shape, "bounded", bounded, "stride", stride, "bytes",
                     (json_int_t)tensor_bytes(t), "view_of", t->view_of, "split",
                     place_json(t->at[SPLIT]), "merged", place_json(t->at[MERGED]));
}

/* True if an instruction reads or writes the tensor or a view of it. */
static bool is_used(const Program *p, int32_t id)
{
    for (int i = 0; i < p->n_instr; i++) {
        const Instr *in = &p->instr[i];
        for (int k = 0; k < in->n_in; k++)
            if (in->in[k] == id || p->tensor[in->in[k]].view_of == id) return true;
        for (int k = 0; k < in->n_out; k++)
            if (in->out[k] == id || p->tensor[in->out[k]].view_of == id) return true;
    }
    return false;
}

static json_t *phases_json(const Facts *f, int class)
{
    const Program *p = &f->job->program[class];
    json_t *list = json_array();
    for (int ph = 0; ph < N_PHASES; ph++) {
        const Work *w = &f->class[class].phase[ph];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "phase",
                      phase_name((Phase)ph), "instructions", w->instructions, "flops",
                      (json_int_t)w->flops, "flops_recomputed", (json_int_t)w->flops_recomputed,
                      "bytes", (json_int_t)w->bytes, "bytes_copied", (json_int_t)w->bytes_copied,
                      "bytes_sent", (json_int_t)w->bytes_sent, "scratch_bytes",
                      (json_int_t)p->scratch_bytes[ph], "scratch_live_bytes",
                      (json_int_t)p->scratch_live[ph]));
    }
    return list;
}

static json_t *shape_json(const Shape *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->ndim; i++) json_array_append_new(list, json_integer(s->n[i]));
    return list;
}

static json_t *routes_json(const Facts *f, const ParamFacts *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n_reductions; i++) {
        json_t *o = group_json(&f->job->mesh, p->reduction[i].group);
        set_text(o, "what", p->reduction[i].what);
        set_text(o, "kind", comm_kind_name(p->reduction[i].kind));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *params_json(const Facts *f, int class)
{
    const Model *m = &f->job->model;
    json_t *list = json_array();
    for (int i = 0; i < m->unit[f->class[class].first].n_params; i++) {
        const ParamFacts *p = &f->class[class].param[i];
        json_t *o = json_object();
        set_text(o, "name", p->name);
        set(o, "shape", shape_json(&p->whole));
        set(o, "decay", json_boolean(p->decay));
        set(o, "use_shape", shape_json(&p->here));
        set_text(o, "use", p->use);
        set_text(o, "in_pack_of", m->unit[p->owner].name);
        set(o, "pack", span_json(p->pack));
        set(o, "home", span_json(p->home));
        set(o, "gradient", routes_json(f, p));
        json_array_append_new(list, o);
    }
    return list;
}

json_t *program_json(const Facts *f, int class)
{
    const Program *p = &f->job->program[class];
    json_t *kept = json_object(), *tensors = json_array(), *instrs = json_array();
    for (int r = REGION_SCRATCH + 1; r < N_OWN_REGIONS; r++)
        json_object_set_new(kept, region_name((Region)r), json_integer((json_int_t)p->bytes[r]));
    for (int32_t v = 0; v < p->n_tensors; v++)
        if (is_used(p, v)) json_array_append_new(tensors, tensor_json(p, v));
    for (int i = 0; i < p->n_instr; i++) json_array_append_new(instrs, instr_json(f, p, i));
    return json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "kind", p->kind, "units",
                     f->class[class].units, "dtype", dtype_name(p->dtype), "parameters",
                     params_json(f, class), "phases", phases_json(f, class), "kept", kept,
                     "tensors", tensors, "instructions", instrs);
}
