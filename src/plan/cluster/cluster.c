/* cluster.c -- reads a cluster file: the machine, its devices and links. */
#include "plan/cluster/cluster.h"

#include <string.h>

#include "plan/cluster/parts.h"

enum { MAX_CLUSTER_BYTES = 1 << 22 };

/* Tflop/s by type. */
static Err read_flops(const ClusterReader *r, const yaml_node_t *map, const char *where, double *to)
{
    const bool peak = strcmp(where, "peak_tflops") == 0;
    ClusterNumber table[] = {{.key = "f64", .unit = 1e12, .to = &to[F64], .optional = peak},
                             {.key = "f32", .unit = 1e12, .to = &to[F32], .optional = peak},
                             {.key = "bf16", .unit = 1e12, .to = &to[BF16], .optional = peak},
                             {.key = "fp8", .unit = 1e12, .to = &to[E4M3], .optional = true}};
    return cluster_numbers(r, map, where, table, 4);
}

/* A whole number of at least 1. */
static Err check_whole(const ClusterReader *r, const yaml_node_t *map, const char *key, double x,
                       int *to)
{
    *to = (int)x;
    if (x >= 1 && x == (double)*to) return OK;
    return err_fail(ERR_CONFIG, "%s:%d: %s: %g is not a whole number of at least 1", r->path,
                    (int)map->start_mark.line + 1, key, x);
}

static Err read_tiles(const ClusterReader *r, const yaml_node_t *map, CostTiles *t)
{
    double units = 0, m = 0, n = 0;
    ClusterNumber table[] = {{.key = "units", .unit = 1, .to = &units},
                             {.key = "m", .unit = 1, .to = &m},
                             {.key = "n", .unit = 1, .to = &n},
                             {.key = "fill_k", .unit = 1, .to = &t->fill_k, .may_be_zero = true},
                             {.key = "boost", .unit = 1, .to = &t->boost, .optional = true}};
    if (!map) return OK;
    TRY(cluster_numbers(r, map, "tiles", table, 5));
    TRY(check_whole(r, map, "units", units, &t->units));
    TRY(check_whole(r, map, "m", m, &t->m));
    return check_whole(r, map, "n", n, &t->n);
}

static Err read_bool(const ClusterReader *r, const yaml_node_t *n, const char *key, bool *out)
{
    const char *on = cluster_scalar(n);
    if (!on || (strcmp(on, "true") != 0 && strcmp(on, "false") != 0))
        return cluster_refuse(r, n, key, "is neither true nor false");
    *out = strcmp(on, "true") == 0;
    return OK;
}

static Err read_power(const ClusterReader *r, const yaml_node_t *map, Cluster *c)
{
    ClusterNumber table[] = {{.key = "idle", .unit = 1, .to = &c->idle_watt},
                             {.key = "busy", .unit = 1, .to = &c->busy_watt}};
    if (!map) return OK;
    TRY(cluster_numbers(r, map, "power_w", table, 2));
    if (c->busy_watt < c->idle_watt) return cluster_refuse(r, map, "power_w", "busy is below idle");
    return OK;
}

static Err read_reach(const ClusterReader *r, const yaml_node_t *map, double *reach)
{
    ClusterNumber table[] = {{.key = "norm", .unit = 1, .to = &reach[REACH_NORM]},
                             {.key = "loss", .unit = 1, .to = &reach[REACH_LOSS]},
                             {.key = "state", .unit = 1, .to = &reach[REACH_STATE]}};
    if (!map) return OK;
    TRY(cluster_numbers(r, map, "memory_reach", table, N_REACHES));
    for (int i = 0; i < N_REACHES; i++)
        if (reach[i] > 1)
            return cluster_refuse(r, map, "memory_reach", "parts of a rate are at most 1");
    return OK;
}

enum { N_DEVICE_KEYS = 8, N_DEVICE_OPTIONAL = 14 };
static const char *const device_keys[N_DEVICE_KEYS + N_DEVICE_OPTIONAL] = {
    "memory_gib",   "peak_tflops",    "gemm_tflops",    "attention_tflops", "pointwise_tflops",
    "memory_gbps",  "host_gbps",      "launch_us",      "host_launch_us",   "pair_bytes",
    "tiles",        "price_per_hour", "power_w",        "gemm_table",       "attention_table",
    "memory_table", "logit_bytes",    "host_member_us", "host_memory",      "attention_by_keys",
    "memory_reach", "epilogue"};

static Err read_device(const ClusterReader *r, const yaml_node_t *map, Cluster *c)
{
    CostRates *rates = &c->rates;
    double *const flops[] = {c->peak_flops_per_s, rates->flops_per_s[WORK_GEMM],
                             rates->flops_per_s[WORK_ATTENTION],
                             rates->flops_per_s[WORK_POINTWISE]};
    ClusterNumber table[] = {
        {.key = "memory_gib", .unit = 0x1p30, .to = &c->memory_bytes},
        {.key = "memory_gbps", .unit = 1e9, .to = &rates->memory_Bps},
        {.key = "host_gbps", .unit = 1e9, .to = &rates->host_Bps},
        {.key = "launch_us", .unit = 1e-6, .to = &rates->launch_s, .may_be_zero = true},
        {.key = "host_launch_us", .unit = 1e-6, .to = &c->host_launch_s, .may_be_zero = true},
        {.key = "host_member_us", .unit = 1e-6, .to = &c->host_member_s, .may_be_zero = true},
        {.key = "pair_bytes", .unit = 1, .to = &rates->pair_bytes, .may_be_zero = true},
        {.key = "logit_bytes", .unit = 1, .to = &rates->logit_bytes, .may_be_zero = true},
        {.key = "epilogue", .unit = 1, .to = &rates->epilogue, .may_be_zero = true},
        {.key = "price_per_hour", .unit = 1, .to = &c->price_per_hour}};
    TRY(cluster_keys(r, map, "device", device_keys, N_DEVICE_KEYS, N_DEVICE_OPTIONAL));
    for (int i = 0; i < 4; i++) {
        const char *key = device_keys[1 + i];
        TRY(read_flops(r, cluster_value(r, map, key), key, flops[i]));
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const yaml_node_t *value = cluster_value(r, map, table[i].key);
        if (value) TRY(cluster_number(r, value, &table[i]));
    }
    const yaml_node_t *host_memory = cluster_value(r, map, "host_memory");
    if (host_memory) TRY(read_bool(r, host_memory, "host_memory", &c->host_memory));
    TRY(read_tiles(r, cluster_value(r, map, "tiles"), &rates->tiles));
    TRY(read_reach(r, cluster_value(r, map, "memory_reach"), rates->reach));
    TRY(read_power(r, cluster_value(r, map, "power_w"), c));
    return cluster_device_tables(r, map, rates);
}

static Err read_link(const ClusterReader *r, const yaml_node_t *map, bool last, CostRates *rates)
{
    static const char *const keys[] = {"latency_us",      "gbps",     "ranks", "shared_by", "level",
                                       "pair_latency_us", "pair_gbps"};
    static const char *const last_keys[] = {"latency_us",      "gbps",     "shared_by", "level",
                                            "pair_latency_us", "pair_gbps"};
    CostLink *link = &rates->level[rates->n_levels];
    const int before = rates->n_levels ? link[-1].ranks : 0;
    double ranks = 0, shared_by = 1;
    ClusterNumber table[] = {
        {.key = "latency_us", .unit = 1e-6, .to = &link->latency_s, .may_be_zero = true},
        {.key = "gbps", .unit = 1e9, .to = &link->Bps},
        {.key = "ranks", .unit = 1, .to = &ranks},
        {.key = "shared_by", .unit = 1, .to = &shared_by},
        {.key = "pair_latency_us", .unit = 1e-6, .to = &link->pair_latency_s},
        {.key = "pair_gbps", .unit = 1e9, .to = &link->pair_Bps}};
    TRY(cluster_keys(r, map, "links", last ? last_keys : keys, last ? 2 : 3, 4));
    for (int i = 0; i < 6; i++) {
        const yaml_node_t *value = cluster_value(r, map, table[i].key);
        if (value) TRY(cluster_number(r, value, &table[i]));
    }
    TRY(check_whole(r, map, "shared_by", shared_by, &link->shared_by));
    const yaml_node_t *name = cluster_value(r, map, "level");
    if (name && (!cluster_scalar(name) || !*cluster_scalar(name)))
        return cluster_refuse(r, name, "level", "is not a text");
    if (name) TRY(arena_string(r->arena, cluster_scalar(name), &link->name));
    link->ranks = (int)ranks;
    if (!last && (ranks != (double)link->ranks || link->ranks <= before ||
                  (before && link->ranks % before != 0)))
        return err_fail(ERR_CONFIG,
                        "%s:%d: links: ranks %g after %d; each level has a multiple of "
                        "the ranks before it",
                        r->path, (int)map->start_mark.line + 1, ranks, before);
    rates->n_levels++;
    return OK;
}

static Err read_links(const ClusterReader *r, const yaml_node_t *list, CostRates *rates)
{
    if (list->type != YAML_SEQUENCE_NODE) return cluster_refuse(r, list, "links", "is not a list");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int n = (int)(list->data.sequence.items.top - first);
    if (n < 1 || n > MAX_LEVELS)
        return err_fail(ERR_CONFIG, "%s:%d: links: %d levels; a cluster has 1 to %d", r->path,
                        (int)list->start_mark.line + 1, n, MAX_LEVELS);
    for (int i = 0; i < n; i++)
        TRY(read_link(r, yaml_document_get_node(r->doc, first[i]), i == n - 1, rates));
    return OK;
}

static Err read_slowdown(const ClusterReader *r, const yaml_node_t *map, Cluster *c)
{
    ClusterNumber table[] = {{.key = "work", .unit = 1, .to = &c->slow_work},
                             {.key = "transfer", .unit = 1, .to = &c->slow_transfer}};
    if (!map) return OK;
    TRY(cluster_numbers(r, map, "slowdown", table, 2));
    if (c->slow_work < 1 || c->slow_transfer < 1)
        return cluster_refuse(r, map, "slowdown", "factors are at least 1");
    return OK;
}

static Err read_root(const ClusterReader *r, Cluster *c)
{
    static const char *const keys[] = {"name",     "overlap",     "device",      "links",
                                       "slowdown", "collectives", "share_links", "node_links",
                                       "pairs",    "node_devices"};
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root)
        return err_fail(ERR_CONFIG,
                        "%s: is empty; a cluster file has name, overlap, device "
                        "and links",
                        r->path);
    TRY(cluster_keys(r, root, "the file", keys, 4, 6));
    const yaml_node_t *share = cluster_value(r, root, "share_links");
    const char *name = cluster_scalar(cluster_value(r, root, "name"));
    if (!name || !*name)
        return cluster_refuse(r, cluster_value(r, root, "name"), "name", "is not a text");
    TRY(read_bool(r, cluster_value(r, root, "overlap"), "overlap", &c->overlaps));
    if (share) TRY(read_bool(r, share, "share_links", &c->share_links));
    TRY(arena_string(r->arena, name, &c->name));
    TRY(read_device(r, cluster_value(r, root, "device"), c));
    TRY(read_links(r, cluster_value(r, root, "links"), &c->rates));
    TRY(read_slowdown(r, cluster_value(r, root, "slowdown"), c));
    TRY(cluster_pairs(r, cluster_value(r, root, "pairs"), &c->rates));
    TRY(cluster_node_links(r, cluster_value(r, root, "node_links"), &c->rates));
    TRY(cluster_node_devices(r, cluster_value(r, root, "node_devices"), c));
    return cluster_collectives(r, cluster_value(r, root, "collectives"), &c->rates);
}

static Err read_document(const char *path, yaml_parser_t *parser, Arena *arena, Cluster *out)
{
    yaml_document_t doc;
    if (!yaml_parser_load(parser, &doc))
        return err_fail(ERR_CONFIG, "%s:%d: not YAML: %s; correct the file there", path,
                        (int)parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "unreadable");
    Cluster c = {0};
    const ClusterReader r = {path, &doc, arena};
    const Err err = read_root(&r, &c);
    yaml_document_delete(&doc);
    if (err == OK) *out = c;
    return err;
}

Err cluster_read(const char *path, Arena *arena, Cluster *out)
{
    yaml_parser_t parser;
    const char *text;
    size_t length;
    TRY(text_read_file(path, MAX_CLUSTER_BYTES, arena, &text, &length));
    if (!yaml_parser_initialize(&parser)) return err_fail(ERR_NOMEM, "%s: no memory", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    const Err err = read_document(path, &parser, arena, out);
    yaml_parser_delete(&parser);
    return err;
}
