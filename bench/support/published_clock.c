/* published_clock.c -- opens, shares and plays the clocks of rows. */
#include "support/published_clock.h"

#include <stdio.h>
#include <string.h>

struct PlanClock {
    PlanClock *next;
    char key[512];
    JobSettings job;
    ModelConfig model;
    Mesh mesh;
    ClockInput in;
    StepClock *clock;
    int64_t stamp; /* of the last play */
    StepTime time;
};

/* All that a plan's tapes depend on. */
static void key_of(const PublishedRow *r, const Cluster *c, int micros, char key[512])
{
    const ModelConfig *m = &r->model;
    const ParallelSettings *p = &r->job.parallel;
    snprintf(key, 512,
             "%d %d %lld %lld %lld %lld %lld %lld %lld %lld %d %lld %d %d %d %d %d %d %d "
             "%d %d %s %d %d %d %g %g %d %s %lld %lld %lld %d %d %d",
             (int)m->family, (int)m->tied, (long long)m->n_layers, (long long)m->width,
             (long long)m->n_heads, (long long)m->n_kv_heads, (long long)m->ff_width,
             (long long)m->vocab, (long long)m->head_size, (long long)m->max_positions,
             (int)r->job.compile.recompute, (long long)r->job.batch.sequences, micros,
             p->mesh.dp_shard, p->mesh.tp, p->mesh.pp, p->mesh.cp, p->zero, (int)p->sequence,
             p->chunks, (int)p->context, r->job.schedule, c->rates.level[0].ranks, r->send_parts,
             (int)r->job.compile.unfused, r->dp_calls, r->dp_bytes, r->attention_launches,
             p->split ? p->split : "", (long long)m->experts.n, (long long)m->experts.chosen,
             (long long)m->experts.width, p->mesh.ep, p->mesh.etp,
             r->job.compile.fp8.names ? 1 + (int)r->job.compile.fp8.scaling : 0);
}

static Err open_clock(PlanCache *cache, const PublishedRow *r, const Cluster *c, int micros,
                      PlanClock **out)
{
    char key[512];
    PlanClock *k;
    key_of(r, c, micros, key);
    for (k = cache->first; k; k = k->next)
        if (strcmp(k->key, key) == 0) {
            *out = k;
            return OK;
        }
    TRY(ARENA_NEW(cache->arena, 1, &k));
    *k = (PlanClock){.job = r->job, .model = r->model, .stamp = -1};
    memcpy(k->key, key, sizeof key);
    k->job.config = &k->model;
    k->job.micros = micros;
    TRY(mesh_sized(&k->job.parallel.mesh, &k->mesh));
    k->in = (ClockInput){.cluster = c,
                         .job = &k->job,
                         .mesh = &k->mesh,
                         .send_parts = r->send_parts,
                         .dp_calls = r->dp_calls,
                         .dp_bytes = r->dp_bytes,
                         .attention_launches = r->attention_launches};
    TRY(clock_open(&k->in, cache->arena, cache->temp, &k->clock));
    k->next = cache->first;
    cache->first = k;
    cache->n++;
    *out = k;
    return OK;
}

Err plan_clocks(PlanCache *cache, const PublishedRow *r, const Cluster *c, RowClocks *out)
{
    const int pp = r->job.parallel.mesh.pp, chunks = r->job.parallel.chunks;
    const int few = chunks > 1 ? 2 * pp : pp + 1, more = chunks > 1 ? pp : 1 + (pp + 3) / 4;
    *out = (RowClocks){.n = 1, .weight = {1, 0}};
    if (r->micros <= few + more) return open_clock(cache, r, c, r->micros, &out->clock[0]);
    out->n = 2;
    out->weight[1] = (double)(r->micros - few) / more;
    out->weight[0] = 1 - out->weight[1];
    TRY(open_clock(cache, r, c, few, &out->clock[0]));
    return open_clock(cache, r, c, few + more, &out->clock[1]);
}

Err plan_seconds(const RowClocks *r, const Cluster *c, int64_t stamp, StepTime *out)
{
    *out = (StepTime){0};
    for (int i = 0; i < r->n; i++) {
        PlanClock *k = r->clock[i];
        if (k->stamp != stamp) TRY(clock_play(k->clock, c, &k->time));
        k->stamp = stamp;
        out->step_s += r->weight[i] * k->time.step_s;
        for (int t = 0; t < N_TIMES; t++) {
            out->spent_s[t] += r->weight[i] * k->time.spent_s[t];
            out->path_s[t] += r->weight[i] * k->time.path_s[t];
        }
    }
    return OK;
}
