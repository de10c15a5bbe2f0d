/* write.c -- a cluster as the text of a cluster file. Values that are 0 are left out if the
 * reader lets them be absent. */
#include "plan/cluster/cluster.h"

/* Types of an unknown peak, which is 0, are left out. */
static void flops_line(Text *t, const char *key, const double *flops_per_s)
{
    static const struct {
        const char *name;
        DType type;
    } types[] = {{"f64", F64}, {"f32", F32}, {"bf16", BF16}, {"fp8", E4M3}};
    const char *before = "";
    text_add(t, "  %s: {", key);
    for (int i = 0; i < 4; i++) {
        if (flops_per_s[types[i].type] == 0) continue;
        text_add(t, "%s%s: %.6g", before, types[i].name, 1e-12 * flops_per_s[types[i].type]);
        before = ", ";
    }
    text_add(t, "}\n");
}

static void optional_line(Text *t, const char *key, double value)
{
    if (value > 0) text_add(t, "  %s: %.6g\n", key, value);
}

/* key: [1, 2, 3], eight numbers to a line. */
static void list_text(Text *t, const char *key, const double *x, int n, double unit)
{
    text_add(t, "%s: [", key);
    for (int i = 0; i < n; i++)
        text_add(t, "%s%.6g", i == 0 ? "" : i % 8 == 0 ? ",\n        " : ", ", x[i] / unit);
    text_add(t, "]");
}

static void keyed_text(Text *t, const CostAttention *a)
{
    for (int i = 0; i < a->n; i++) {
        text_add(t, "      - {width: %.6g", a->width[i]);
        list_text(t, ", keys", a->forward[i].x, a->forward[i].n, 1);
        list_text(t, ",\n        tflops", a->forward[i].y, a->forward[i].n, 1e12);
        list_text(t, ",\n        back_tflops", a->backward[i].y, a->backward[i].n, 1e12);
        text_add(t, "}\n");
    }
}

static void tables_text(Text *t, const CostRates *r)
{
    static const char *const dtype[] = {[F64] = "f64", [F32] = "f32", [BF16] = "bf16"};
    bool first = true;
    for (int d = F64; d <= BF16; d++) {
        const CostGrid *g = r->gemm[d];
        if (!g) continue;
        text_add(t, "%s    %s: {", first ? "  gemm_table:\n" : "", dtype[d]);
        list_text(t, "m", g->m, g->n_m, 1);
        list_text(t, ", n", g->n, g->n_n, 1);
        list_text(t, ", k", g->k, g->n_k, 1);
        list_text(t, ",\n      tflops", g->rate, g->n_m * g->n_n * g->n_k, 1e12);
        text_add(t, "}\n");
        first = false;
    }
    first = true;
    for (int d = F64; d <= BF16; d++) {
        const CostCurve *c = r->attention[d];
        if (!c) continue;
        text_add(t, "%s    %s: {", first ? "  attention_table:\n" : "", dtype[d]);
        list_text(t, "flops", c->x, c->n, 1);
        list_text(t, ",\n      tflops", c->y, c->n, 1e12);
        text_add(t, "}\n");
        first = false;
    }
    first = true;
    for (int d = F64; d <= BF16; d++) {
        if (!r->keyed[d]) continue;
        text_add(t, "%s    %s:\n", first ? "  attention_by_keys:\n" : "", dtype[d]);
        keyed_text(t, r->keyed[d]);
        first = false;
    }
    if (!r->memory) return;
    text_add(t, "  memory_table: {");
    list_text(t, "bytes", r->memory->x, r->memory->n, 1);
    list_text(t, ",\n      gbps", r->memory->y, r->memory->n, 1e9);
    text_add(t, "}\n");
}

static void device_text(Text *t, const Cluster *c)
{
    const CostRates *r = &c->rates;
    text_add(t, "device:\n  memory_gib: %.6g\n", c->memory_bytes / 0x1p30);
    if (c->host_memory) text_add(t, "  host_memory: true\n");
    flops_line(t, "peak_tflops", c->peak_flops_per_s);
    flops_line(t, "gemm_tflops", r->flops_per_s[WORK_GEMM]);
    flops_line(t, "attention_tflops", r->flops_per_s[WORK_ATTENTION]);
    flops_line(t, "pointwise_tflops", r->flops_per_s[WORK_POINTWISE]);
    text_add(t, "  memory_gbps: %.6g\n  host_gbps: %.6g\n  launch_us: %.6g\n", 1e-9 * r->memory_Bps,
             1e-9 * r->host_Bps, 1e6 * r->launch_s);
    optional_line(t, "host_launch_us", 1e6 * c->host_launch_s);
    optional_line(t, "host_member_us", 1e6 * c->host_member_s);
    optional_line(t, "pair_bytes", r->pair_bytes);
    optional_line(t, "logit_bytes", r->logit_bytes);
    if (r->tiles.units) {
        text_add(t, "  tiles: {units: %d, m: %d, n: %d, fill_k: %.6g", r->tiles.units, r->tiles.m,
                 r->tiles.n, r->tiles.fill_k);
        if (r->tiles.boost > 0) text_add(t, ", boost: %.6g", r->tiles.boost);
        text_add(t, "}\n");
    }
    optional_line(t, "epilogue", r->epilogue);
    if (r->reach[REACH_NORM] > 0)
        text_add(t, "  memory_reach: {norm: %.6g, loss: %.6g, state: %.6g}\n", r->reach[REACH_NORM],
                 r->reach[REACH_LOSS], r->reach[REACH_STATE]);
    optional_line(t, "price_per_hour", c->price_per_hour);
    if (c->busy_watt > 0)
        text_add(t, "  power_w: {idle: %.6g, busy: %.6g}\n", c->idle_watt, c->busy_watt);
    tables_text(t, r);
}

static void link_text(Text *t, const CostLink *l, bool last)
{
    text_add(t, "  - {");
    if (l->name) text_add(t, "level: \"%s\", ", l->name);
    if (!last) text_add(t, "ranks: %d, ", l->ranks);
    text_add(t, "latency_us: %.6g, gbps: %.6g", 1e6 * l->latency_s, 1e-9 * l->Bps);
    if (l->shared_by > 1) text_add(t, ", shared_by: %d", l->shared_by);
    if (l->pair_latency_s > 0) text_add(t, ", pair_latency_us: %.6g", 1e6 * l->pair_latency_s);
    if (l->pair_Bps > 0) text_add(t, ", pair_gbps: %.6g", 1e-9 * l->pair_Bps);
    text_add(t, "}\n");
}

static void collectives_text(Text *t, const CostRates *r)
{
    if (r->n_tables) text_add(t, "collectives:\n");
    for (int i = 0; i < r->n_tables; i++) {
        const CostTable *table = &r->table[i];
        text_add(t, "  - {kind: %s, members: %d, level: \"%s\", inside: %d,\n     ",
                 comm_kind_name(table->kind), table->members, r->level[table->level].name,
                 table->inside);
        list_text(t, "bytes", table->seconds.x, table->seconds.n, 1);
        list_text(t, ",\n     us", table->seconds.y, table->seconds.n, 1e-6);
        text_add(t, "}\n");
    }
}

static void pairs_text(Text *t, const CostPairs *p)
{
    if (!p) return;
    const int n = p->n * (p->n - 1) / 2;
    text_add(t, "pairs:\n  ranks: %d\n  latency_us: [", p->n);
    for (int i = 0; i < n; i++)
        text_add(t, "%s%.4g",
                 i == 0        ? ""
                 : i % 12 == 0 ? ",\n    "
                               : ", ",
                 1e6 * (double)p->latency_s[i]);
    text_add(t, "]\n  gbps: [");
    for (int i = 0; i < n; i++)
        text_add(t, "%s%.4g",
                 i == 0        ? ""
                 : i % 12 == 0 ? ",\n    "
                               : ", ",
                 1e-9 * (double)p->Bps[i]);
    text_add(t, "]\n");
}

/* A line for each pair. */
static void node_links_text(Text *t, const CostNodes *n)
{
    if (!n || n->n_links == 0) return;
    text_add(t, "node_links:\n");
    for (int a = 0; a < n->n; a++)
        for (int b = a + 1; b < n->n; b++) {
            if (!n->between[a * n->n + b]) continue;
            const CostLink *l = &n->link[n->between[a * n->n + b] - 1];
            text_add(t, "  - {nodes: [%d, %d], latency_us: %.6g, gbps: %.6g}\n", a, b,
                     1e6 * l->latency_s, 1e-9 * l->Bps);
        }
}

static bool same_device(const CostDevice *a, const CostDevice *b)
{
    return a->speed == b->speed && a->memory_bytes == b->memory_bytes;
}

/* A line for each kind of device. */
static void node_devices_text(Text *t, const CostNodes *n)
{
    const CostDevice plain = {.speed = 1};
    bool any = false;
    for (int i = 0; n && i < n->n_devices; i++) {
        const CostDevice *d = &n->device[i];
        bool is_new = !same_device(d, &plain);
        for (int k = 0; k < i && is_new; k++) is_new = !same_device(d, &n->device[k]);
        if (!is_new) continue;
        text_add(t, "%s  - {nodes: [%d", any ? "" : "node_devices:\n", i);
        for (int k = i + 1; k < n->n_devices; k++)
            if (same_device(d, &n->device[k])) text_add(t, ", %d", k);
        text_add(t, "], speed: %.6g", d->speed);
        if (d->memory_bytes > 0) text_add(t, ", memory_gib: %.6g", d->memory_bytes / 0x1p30);
        text_add(t, "}\n");
        any = true;
    }
}

void cluster_text(const Cluster *c, Text *t)
{
    const CostRates *r = &c->rates;
    text_add(t, "name: \"");
    for (const char *s = c->name; *s; s++)
        text_add(t, "%s%c", *s == '"' || *s == '\\' ? "\\" : "", *s);
    text_add(t, "\"\noverlap: %s\n", c->overlaps ? "true" : "false");
    if (c->share_links) text_add(t, "share_links: true\n");
    if (c->slow_work > 0 && c->slow_transfer > 0)
        text_add(t, "slowdown: {work: %.6g, transfer: %.6g}\n", c->slow_work, c->slow_transfer);
    device_text(t, c);
    text_add(t, "links:\n");
    for (int i = 0; i < r->n_levels; i++) link_text(t, &r->level[i], i == r->n_levels - 1);
    pairs_text(t, r->pairs);
    node_links_text(t, r->nodes);
    node_devices_text(t, r->nodes);
    collectives_text(t, r);
}
