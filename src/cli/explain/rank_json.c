/* rank_json.c -- actions, transfers and memory of a rank as JSON. */
#include "cli/explain/json.h"

#include "schedule/text_form.h"

static const char *const arena_name[N_ARENAS] = {"state", "step",    "work",
                                                 "host",  "session", "kernels"};

json_t *span_json(Span s) { return json_pack("[I, I]", (json_int_t)s.lo, (json_int_t)s.hi); }

static json_t *axes_json(const Mesh *m, unsigned axes)
{
    json_t *list = json_array();
    for (int i = 0; i < m->view[VIEW_DENSE].n_axes; i++)
        if (axes >> i & 1) json_array_append_new(list, json_string(m->view[VIEW_DENSE].name[i]));
    return list;
}

json_t *group_json(const Mesh *m, RankList group)
{
    enum { LISTED = 64 }; /* a larger group is described by its axes alone */
    json_t *o = json_object(), *ranks = json_array();
    set(o, "axes", axes_json(m, group_axes(m, group)));
    set_count(o, "group", group.n);
    for (int i = 0; i < group.n && group.n <= LISTED; i++)
        json_array_append_new(ranks, json_integer(group.rank[i]));
    set(o, "ranks", ranks);
    return o;
}

json_t *transfer_json(const Facts *f, const Transfer *t)
{
    json_t *o = json_object();
    set_text(o, "kind", comm_kind_name(t->kind));
    json_t *group = group_json(&f->job->mesh, t->group);
    json_object_update(o, group);
    json_decref(group);
    set_bytes(o, "sent_bytes", transfer_sent(t, f->job->linked.rank));
    return o;
}

/* An address: offsets are bytes within the arena. */
static json_t *spot_json(const Ref *r)
{
    return json_pack("{s:s, s:I, s:I, s:s}", "arena", arena_name[r->arena], "offset",
                     (json_int_t)r->offset, "elements", (json_int_t)r->count, "dtype",
                     dtype_name(r->dtype));
}

/* The steps of a GATHER, REDUCE or move in execution order. Only transfers have a group. */
static json_t *steps_json(const Facts *f, const LinkedAction *l)
{
    static const char *const name[] = {"transfer", "add", "copy"};
    json_t *list = json_array();
    for (int i = 0; i < l->n_steps; i++) {
        const LinkedStep *s = &l->step[i];
        json_t *o = json_object();
        set_text(o, "step", name[s->kind]);
        set_text(o, "what", s->what);
        set(o, "from", spot_json(&s->t.from));
        set(o, "to", spot_json(&s->t.to));
        if (s->kind == STEP_TRANSFER) set(o, "transfer", transfer_json(f, &s->t));
        json_array_append_new(list, o);
    }
    return list;
}

json_t *actions_json(const Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    char text[ACTION_TEXT_BYTES];
    json_t *list = json_array();
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        json_t *o = json_object(), *base = json_object();
        set_text(o, "action", action_text(&l->action, f->job->units.slices, text));
        if (!action_is_whole(&l->action) && l->action.kind != A_BIND)
            set_text(o, "unit", lp->model->unit[linked_unit(lp, &l->action)].name);
        /* Regions after REGION_DY are parameters and inputs, which have their own addresses. */
        for (int r = 0; r <= REGION_DY && l->program; r++)
            if (l->base[r] != NO_BASE) set_bytes(base, region_name((Region)r), l->base[r]);
        if (l->program)
            set(o, "base", base);
        else
            json_decref(base);
        if (l->n_steps > 0 || l->action.kind == A_GATHER || l->action.kind == A_REDUCE) {
            set(o, "steps", steps_json(f, l));
            set_count(o, "begun_step", l->begun);
            set_count(o, "waited_before", l->end);
        }
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *gathers_json(const Facts *f)
{
    json_t *list = json_array();
    const Model *m = &f->job->model;
    for (int p = 0; p < m->n_packs; p++) {
        const GatherCount *g = &f->job->gathers[p];
        json_t *o = json_pack("{s:s, s:i, s:i, s:i}", "unit", m->unit[m->pack[p].unit].name, "uses",
                              g->uses, "gathers", g->gathers, "saved", g->saved);
        if (m->unit[m->pack[p].unit].n_packs > 1) set_count(o, "pack", p);
        json_array_append_new(list, o);
    }
    return list;
}

json_t *transfers_json(const Facts *f)
{
    json_t *o = json_object(), *list = json_array();
    for (int i = 0; i < f->n_transfers; i++) {
        const TransferRow *row = &f->transfer[i];
        json_t *r = json_object();
        set_text(r, "purpose", row->what);
        set_text(r, "kind", comm_kind_name(row->kind));
        set(r, "axes", axes_json(&f->job->mesh, row->axes));
        set_count(r, "group", row->ranks);
        set_count(r, "transfers", row->times);
        set_bytes(r, "bytes", row->bytes);
        set_bytes(r, "sent_bytes", row->sent_bytes);
        json_array_append_new(list, r);
    }
    set(o, "rows", list);
    set_bytes(o, "sent_bytes", f->sent_bytes);
    set_count(o, "group_channels", f->channels.groups);
    set_count(o, "pair_channels", f->channels.pairs);
    set(o, "gathers", gathers_json(f));
    return o;
}

/* The work arena: its size, the lower bound of any packing, and the live regions at the action
 * where the live bytes are highest. */
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
    for (int i = 0; i < f->n_memory; i++)
        if (f->memory[i].arena == ARENA_WORK) set_bytes(by, f->memory[i].key, f->memory[i].bytes);
    set(o, "peak_regions", by);
    return o;
}

static json_t *rows_json(const Facts *f)
{
    json_t *list = json_array();
    for (int i = 0; i < f->n_memory; i++) {
        const MemoryRow *row = &f->memory[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:I}", "arena",
                                              arena_name[row->arena], "scope", row->scope, "key",
                                              row->key, "what", row->what, "bytes",
                                              (json_int_t)row->bytes));
    }
    return list;
}

json_t *memory_json(const Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    json_t *o = json_object(), *state = json_object(), *step = json_object(), *host = json_object();
    set_bytes(state, "bytes", lp->bytes[ARENA_STATE]);
    set_bytes(state, "weights",
              memory_sum(f, ARENA_STATE, "packs") + memory_sum(f, ARENA_STATE, "homes"));
    set_bytes(state, "master", memory_sum(f, ARENA_STATE, "master"));
    set_bytes(state, "moments", memory_sum(f, ARENA_STATE, "moments"));
    set(o, "state", state);
    /* `gradients` is the remainder, so that the members of `step` add up to its bytes. */
    const size_t inputs = memory_sum(f, ARENA_STEP, "inputs");
    const size_t other = memory_sum(f, ARENA_STEP, "losses") + memory_sum(f, ARENA_STEP, "scalars");
    const size_t prepacked = memory_sum(f, ARENA_STEP, "prepacked");
    set_bytes(step, "bytes", lp->bytes[ARENA_STEP]);
    set_bytes(step, "gradients", memory_sum(f, ARENA_STEP, NULL) - prepacked - inputs - other);
    set_bytes(step, "prepacked", prepacked);
    set_bytes(step, "inputs", inputs);
    set_bytes(step, "other", other);
    set(o, "step", step);
    set(o, "work", work_json(f));
    set_bytes(host, "bytes", lp->bytes[ARENA_HOST]);
    set_bytes(host, "live_bytes", lp->live[ARENA_HOST]);
    set(o, "host", host);
    set(o, "session", json_pack("{s:I}", "bytes", (json_int_t)lp->bytes[ARENA_SESSION]));
    set(o, "kernels", json_pack("{s:I}", "bytes", (json_int_t)lp->bytes[ARENA_KERNELS]));
    set_bytes(o, "save_bytes", f->save);
    set_bytes(o, "valid_bytes", f->valid);
    set_bytes(o, "pinned_bytes", f->pinned);
    set_bytes(o, "total_bytes", f->total);
    set(o, "rows", rows_json(f));
    return o;
}
