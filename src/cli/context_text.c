/* context_text.c -- how attention and tokens are sharded over cp, as text and as JSON. */
#include "cli/context_text.h"

#include <jansson.h>
#include <stdio.h>
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

static bool chosen_by_auto(const Job *job) { return job->search.n > 0; }

/* "ring", "ring cp_heads=2": the words of a layout. */
static const char *candidate_name(const Job *job, const ContextCandidate *c, char buffer[64])
{
    const bool hybrid = c->heads > 1 && c->heads < job->settings.parallel.mesh.cp;
    snprintf(buffer, 64, hybrid ? "%s cp_heads=%d" : "%s", context_name(c->kind), c->heads);
    return buffer;
}

/* The candidate with the n-th fewest seconds among those that are possible; NULL: none. The choice
 * comes first. */
static const ContextCandidate *fastest(const ContextSearch *s, int n)
{
    const ContextCandidate *best = &s->list[s->best];
    if (n == 0) return best;
    for (int i = 0; i < s->n; i++) {
        const ContextCandidate *c = &s->list[i];
        int before = 1;
        if (c == best || c->why_not) continue;
        for (int k = 0; k < s->n; k++) {
            const ContextCandidate *o = &s->list[k];
            if (o == best || o->why_not) continue;
            before += o->seconds < c->seconds || (o->seconds == c->seconds && k < i);
        }
        if (before == n) return c;
    }
    return NULL;
}

static const char *rates_name(const Job *job)
{
    const Cluster *c = job->settings.parallel.cluster;
    return c ? c->name : "default rates";
}

void context_text(const Job *job, Text *t)
{
    text_add(t, "%s", context_name(job->context));
    if (heads_parts(job) > 1 && ring_parts(job) > 1)
        text_add(t, " over cp_ring, %d ranks; heads over cp_heads, %d", ring_parts(job),
                 heads_parts(job));
    if (chosen_by_auto(job)) text_add(t, ", chosen by auto");
}

/* What is not possible, and why. */
static void excluded_text(const Job *job, const char *before, const char *between, Text *t)
{
    const ContextSearch *s = &job->search;
    char name[64];
    for (int i = 0, n = 0; i < s->n; i++)
        if (s->list[i].why_not)
            text_add(t, "%s%s: %s", n++ ? between : before, candidate_name(job, &s->list[i], name),
                     s->list[i].why_not);
}

void context_others_text(const Job *job, Text *t)
{
    const ContextSearch *s = &job->search;
    char name[64];
    const ContextCandidate *c;
    text_add(t, "attention of a micro-batch by %s:", rates_name(job));
    for (int i = 0; (c = fastest(s, i)); i++)
        text_add(t, "%s %s %.4g ms", i ? "," : "", candidate_name(job, c, name), 1e3 * c->seconds);
    excluded_text(job, "; not possible: ", "; ", t);
}

void context_table_text(const Job *job, const char *before, Text *t)
{
    const ContextSearch *s = &job->search;
    const ContextCandidate *c;
    char name[64], bytes[24];
    if (!chosen_by_auto(job)) return;
    text_add(t, "%sattention and its transfers, all layers of a micro-batch, by %s\n", before,
             rates_name(job));
    text_add(t, "%s%-24s %-10s %10s  %6s  %s\n", before, "way", "tokens", "ms", "hidden",
             "blocks of others");
    for (int i = 0; (c = fastest(s, i)); i++)
        text_add(t, "%s%-24s %-10s %10.4g  %5.0f%%  %s\n", before, candidate_name(job, c, name),
                 token_map_name(c->tokens), 1e3 * c->seconds, 100 * c->hidden,
                 text_bytes((size_t)c->held_bytes, bytes));
    for (int i = 0; i < s->n; i++)
        if (s->list[i].why_not)
            text_add(t, "%s%-24s not possible: %s\n", before,
                     candidate_name(job, &s->list[i], name), s->list[i].why_not);
}

void context_tokens_text(const Job *job, Text *t)
{
    const int parts = job->strategy.tokens->n_parts;
    const bool all = parts == job->settings.parallel.mesh.cp;
    const bool clips = job->settings.config->frames > 0;
    text_add(t, "%s%s over %s%d ranks", clips ? "whole frames" : token_map_name(job->tokens),
             job->settings.parallel.tokens == TOKENS_AUTO && !clips ? ", chosen by auto," : "",
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
    json_t *o = json_object(), *ms = json_object(), *excluded = json_object();
    for (int i = 0; i < job->search.n; i++) {
        const ContextCandidate *c = &job->search.list[i];
        char name[64];
        candidate_name(job, c, name);
        if (c->why_not)
            json_object_set_new(excluded, name, json_string(c->why_not));
        else
            json_object_set_new(ms, name, json_real(1e3 * c->seconds));
    }
    json_object_set_new(o, "kind", json_string(context_name(job->context)));
    json_object_set_new(o, "chosen_by_auto", json_boolean(chosen_by_auto(job)));
    json_object_set_new(o, "tokens", json_string(token_map_name(job->tokens)));
    json_object_set_new(o, "tokens_chosen_by_auto",
                        json_boolean(job->settings.parallel.tokens == TOKENS_AUTO));
    json_object_set_new(o, "ms", ms);
    json_object_set_new(o, "excluded", excluded);
    return o;
}
