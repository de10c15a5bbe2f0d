/* context_text.c -- how attention and tokens are sharded over cp, as text and as JSON. */
#include "cli/context_text.h"

#include <jansson.h>
#include "base/math.h"

/* Ranks that share heads in attention; 1: none. */
static int heads_parts(const Job *job)
{
    const MeshSizes *m = &job->settings.parallel.mesh;
    const bool hybrid = m->cp_heads > 1 && m->cp_heads < m->cp;
    return hybrid ? m->cp_heads : job->context == CONTEXT_ULYSSES ? m->cp : 1;
}

/* Ranks among which heads are whole, and keys are gathered or travel. */
static int ring_parts(const Job *job) { return job->settings.parallel.mesh.cp / heads_parts(job); }

static bool chosen_by_auto(const Job *job)
{
    return job->no_ulysses || job->context_seconds[CONTEXT_GATHER] > 0;
}

void context_text(const Job *job, Text *t)
{
    const char *between = "; layers of a micro-batch at default rates: ";
    text_add(t, "%s", context_name(job->context));
    if (heads_parts(job) > 1 && ring_parts(job) > 1)
        text_add(t, " over cp_ring, %d ranks; heads over cp_heads, %d", ring_parts(job),
                 heads_parts(job));
    if (chosen_by_auto(job)) text_add(t, ", chosen by auto");
    if (job->no_ulysses) text_add(t, ": %s", job->no_ulysses);
    for (int i = 0; i < N_CONTEXTS; i++) {
        if (job->context_seconds[i] <= 0) continue;
        text_add(t, "%s%s %.5g ms", between, context_name((ContextKind)i),
                 1e3 * job->context_seconds[i]);
        between = ", ";
    }
}

void context_tokens_text(const Job *job, Text *t)
{
    const int parts = job->strategy.tokens->n_parts;
    const bool all = parts == job->settings.parallel.mesh.cp;
    text_add(t, "%s%s over %s%d ranks", token_map_name(job->tokens),
             job->settings.parallel.tokens == TOKENS_AUTO ? ", chosen by auto," : "",
             all ? "" : "cp_ring, ", parts);
    if (!all) text_add(t, ", and evenly over cp_heads, %d", heads_parts(job));
}

void context_share_text(const Job *job, Text *t)
{
    const SpanMap *map = job->strategy.tokens;
    const int within = job->settings.parallel.mesh.cp / map->n_parts;
    int64_t least = INT64_MAX, most = 0;
    for (int p = 0; p < map->n_parts; p++) {
        const int64_t n = held_map(map, p).count;
        least = min_i64(least, n / within);
        most = max_i64(most, (n + within - 1) / within);
    }
    text_add(t, least == most ? "%lld on each rank of cp" : "at most %lld on each rank of cp",
             (long long)most);
}

double context_heads_balance(const Job *job)
{
    const MeshSizes *m = &job->settings.parallel.mesh;
    const int64_t tp = m->tp > 1 ? m->tp : 1, parts = heads_parts(job);
    const int64_t heads = (job->settings.config->n_heads + tp - 1) / tp;
    return (double)((heads + parts - 1) / parts * parts) / (double)heads;
}

json_t *context_json(const Job *job)
{
    if (!job->strategy.tokens) return json_null();
    json_t *o = json_object(), *ms = json_object();
    for (int i = 0; i < N_CONTEXTS; i++)
        if (job->context_seconds[i] > 0)
            json_object_set_new(ms, context_name((ContextKind)i),
                                json_real(1e3 * job->context_seconds[i]));
    json_object_set_new(o, "kind", json_string(context_name(job->context)));
    json_object_set_new(o, "chosen_by_auto", json_boolean(chosen_by_auto(job)));
    json_object_set_new(o, "tokens", json_string(token_map_name(job->tokens)));
    json_object_set_new(o, "tokens_chosen_by_auto",
                        json_boolean(job->settings.parallel.tokens == TOKENS_AUTO));
    json_object_set_new(o, "ms", ms);
    json_object_set_new(o, "no_ulysses",
                        job->no_ulysses ? json_string(job->no_ulysses) : json_null());
    return o;
}
