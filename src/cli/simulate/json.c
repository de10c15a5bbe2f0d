/* json.c -- a simulation as one JSON object, keys in the order in which they are set.
 *
 *     version, sheaf, model, mesh, ranks, context, classes, greatest, sent, flops,
 *     flops_recomputed, cluster, step_ms, tokens_per_s, mfu, peak_bytes, fits, fullest,
 *     breakdown, critical_path
 *
 * A class has: first, last, ranks, memory, sent, flops, flops_recomputed. Numbers are integers.
 * cluster and the keys after it are there with --cluster only; mfu is null if the cluster has no
 * peak. On a cluster with node_devices, fullest is the rank that has the least memory left, and
 * peak_bytes are its own. breakdown and critical_path are milliseconds by kind of time, which add
 * up to step_ms. */
#include <jansson.h>
#include "cli/context_text.h"
#include "cli/explain/explain.h"
#include "cli/simulate/simulate.h"
#include "cli/verbs.h"

static void set(json_t *o, const char *key, json_t *value) { json_object_set_new(o, key, value); }
static void set_count(json_t *o, const char *key, int64_t n) { set(o, key, json_integer(n)); }
static void set_bytes(json_t *o, const char *key, size_t n) { set_count(o, key, (int64_t)n); }

static json_t *traffic_json(const Mesh *m, const Traffic *traffic)
{
    json_t *list = json_array();
    for (int i = 0; i < traffic->n; i++) {
        const TrafficRow *row = &traffic->row[i];
        json_t *o = json_object(), *axes = json_array();
        for (int k = 0; k < m->view[VIEW_DENSE].n_axes; k++)
            if (row->axes >> k & 1)
                json_array_append_new(axes, json_string(m->view[VIEW_DENSE].name[k]));
        set(o, "kind", json_string(comm_kind_name(row->kind)));
        set(o, "axes", axes);
        set(o, "scalar", json_boolean(row->scalar));
        set_count(o, "transfers", row->transfers);
        set_bytes(o, "bytes", row->bytes);
        set_bytes(o, "sent_bytes", row->sent_bytes);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *memory_json(const RankCount *c)
{
    static const char *const name[N_ARENAS] = {
        [ARENA_STATE] = "state", [ARENA_STEP] = "step",       [ARENA_WORK] = "work",
        [ARENA_HOST] = "host",   [ARENA_SESSION] = "session", [ARENA_KERNELS] = "kernels"};
    json_t *o = json_object(), *peak = json_object();
    for (int i = 0; i < N_ARENAS; i++) set_bytes(o, name[i], c->bytes[i]);
    set_bytes(o, "save", c->save_bytes);
    set_bytes(o, "valid", c->valid_bytes);
    set_bytes(o, "pinned", c->pinned_bytes);
    set_bytes(o, "total", c->total_bytes);
    for (int r = 0; r < N_OWN_REGIONS; r++)
        if (r != REGION_HOST) set_bytes(peak, region_name((Region)r), c->peak_region[r]);
    set_bytes(peak, "gathered", c->peak_packs);
    set_bytes(peak, "gradients", c->peak_grads);
    set(o, "work_peak", peak);
    return o;
}

static json_t *class_json(const Mesh *m, const RankClass *k)
{
    json_t *o = json_object(), *round = NULL;
    set_count(o, "first", k->first);
    set_count(o, "last", k->last);
    set_count(o, "ranks", k->ranks);
    set(o, "memory", memory_json(&k->count));
    set(o, "sent", traffic_json(m, &k->count.traffic));
    for (int p = 0; p < N_PHASES; p++) {
        if (k->count.round.sent_bytes[p] == 0) continue;
        if (!round) round = json_object();
        set_bytes(round, phase_name((Phase)p), k->count.round.sent_bytes[p]);
    }
    if (round) set(o, "round_sent", round);
    set_count(o, "flops", (int64_t)k->count.flops);
    set_count(o, "flops_recomputed", (int64_t)k->count.flops_recomputed);
    return o;
}

/* Milliseconds by kind of time. */
static json_t *times_json(const double *seconds)
{
    json_t *o = json_object();
    for (int k = 0; k < N_TIMES; k++)
        set(o, time_kind_name((TimeKind)k), json_real(1e3 * seconds[k]));
    return o;
}

static void add_time(json_t *o, const SimulationReport *s)
{
    const double mfu = simulated_mfu(s);
    const SimulatedFit fit = simulated_fit(s);
    set(o, "cluster", json_string(s->cluster->name));
    set(o, "step_ms", json_real(1e3 * s->time.step_s));
    set(o, "tokens_per_s", json_real((double)s->time.tokens / s->time.step_s));
    set(o, "mfu", mfu < 0 ? json_null() : json_real(mfu));
    set_bytes(o, "peak_bytes", (size_t)fit.bytes);
    set(o, "fits", json_boolean(fit.bytes <= fit.limit_bytes));
    if (s->all.class_of) set_count(o, "fullest", fit.rank);
    set(o, "breakdown", times_json(s->time.spent_s));
    set(o, "critical_path", times_json(s->time.path_s));
}

static json_t *all_json(const SimulationReport *s)
{
    const View *v = &s->mesh->view[VIEW_DENSE];
    const RankClass *most = &s->all.class[s->all.greatest];
    json_t *o = json_object(), *mesh = json_object(), *classes = json_array();
    json_t *greatest = json_object(), *model = json_object();
    set_count(o, "version", 1);
    set(o, "sheaf", json_string(SHEAF_VERSION));
    set(model, "name", json_string(s->settings->config->name));
    set_count(model, "parameters", s->parameters);
    set(o, "model", model);
    for (int i = 0; i < v->n_axes; i++) set_count(mesh, v->name[i], v->size[i]);
    set(o, "mesh", mesh);
    set_count(o, "ranks", s->mesh->world);
    set(o, "context", context_json(s->all.shared));
    for (int i = 0; i < s->all.n; i++)
        json_array_append_new(classes, class_json(s->mesh, &s->all.class[i]));
    set(o, "classes", classes);
    set_count(greatest, "rank", most->first);
    set_bytes(greatest, "bytes", most->count.total_bytes);
    set(o, "greatest", greatest);
    set(o, "sent", traffic_json(s->mesh, &s->all.traffic));
    set(o, "flops", json_real(s->all.flops)); /* of all ranks: may exceed 2^63 */
    set(o, "flops_recomputed", json_real(s->all.flops_recomputed));
    if (s->cluster) add_time(o, s);
    return o;
}

Err simulate_json(const SimulationReport *s, Text *out) { return json_text(all_json(s), out); }
