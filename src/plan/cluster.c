/* cluster.c -- reads a cluster file. Numbers are a table of keys; maps are checked against it. */
#include "plan/cluster.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_CLUSTER_BYTES = 1 << 20 };

/* One number: its key, the unit that it is written in, and where it goes. */
typedef struct {
    const char *key;
    double unit;
    double *to;
    bool may_be_zero, optional;
    bool set;
} ClusterNumber;

typedef struct {
    const char *path;
    yaml_document_t *doc;
    Arena *arena;
} ClusterReader;

static int line_of(const yaml_node_t *n) { return (int)n->start_mark.line + 1; }

static const char *scalar_of(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static Err refuse(const ClusterReader *r, const yaml_node_t *n, const char *where, const char *what)
{
    return err_fail(ERR_CONFIG, "%s:%d: %s: %s", r->path, line_of(n), where, what);
}

static Err read_number(const ClusterReader *r, const yaml_node_t *n, ClusterNumber *number)
{
    const char *text = scalar_of(n);
    char *end = NULL;
    errno = 0;
    const double x = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || errno || !isfinite(x) || x < 0 ||
        (x == 0 && !number->may_be_zero))
        return err_fail(ERR_CONFIG, "%s:%d: %s: \"%.40s\" is not a number %s; write one like 12.5",
                        r->path, line_of(n), number->key, text ? text : "a list or map",
                        number->may_be_zero ? "of at least 0" : "above 0");
    *number->to = x * number->unit;
    number->set = true;
    return OK;
}

/* Reads a map whose keys are those of the table, each once. `where` is the map's own key. */
static Err read_numbers(const ClusterReader *r, const yaml_node_t *map, const char *where,
                        ClusterNumber *table, int n)
{
    if (map->type != YAML_MAPPING_NODE) return refuse(r, map, where, "is not a map of numbers");
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        const char *name = scalar_of(key);
        int i = 0;
        while (i < n && (!name || strcmp(table[i].key, name) != 0)) i++;
        if (i == n) return refuse(r, key, where, "has a key that no cluster file has; remove it");
        if (table[i].set) return refuse(r, key, name, "is there twice; remove one");
        TRY(read_number(r, yaml_document_get_node(r->doc, p->value), &table[i]));
    }
    for (int i = 0; i < n; i++)
        if (!table[i].set && !table[i].optional)
            return err_fail(ERR_CONFIG, "%s:%d: %s has no %s; add it", r->path, line_of(map), where,
                            table[i].key);
    return OK;
}

/* Tflop/s by type. */
static Err read_flops(const ClusterReader *r, const yaml_node_t *map, const char *where, double *to)
{
    const bool peak = strcmp(where, "peak_tflops") == 0;
    ClusterNumber table[] = {{.key = "f64", .unit = 1e12, .to = &to[F64], .optional = peak},
                             {.key = "f32", .unit = 1e12, .to = &to[F32], .optional = peak},
                             {.key = "bf16", .unit = 1e12, .to = &to[BF16], .optional = peak}};
    return read_numbers(r, map, where, table, 3);
}

/* The value of a key of a map that holds maps and scalars; NULL: it is not there. */
static const yaml_node_t *value_of(const ClusterReader *r, const yaml_node_t *map, const char *key)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *name = scalar_of(yaml_document_get_node(r->doc, p->key));
        if (name && strcmp(name, key) == 0) return yaml_document_get_node(r->doc, p->value);
    }
    return NULL;
}

/* Checks that a map has exactly these keys, each once. */
static Err check_keys(const ClusterReader *r, const yaml_node_t *map, const char *where,
                      const char *const *key, int n)
{
    int found = 0;
    if (map->type != YAML_MAPPING_NODE) return refuse(r, map, where, "is not a map");
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++, found++) {
        const yaml_node_t *node = yaml_document_get_node(r->doc, p->key);
        const char *name = scalar_of(node);
        int i = 0;
        while (i < n && (!name || strcmp(key[i], name) != 0)) i++;
        if (i == n)
            return err_fail(ERR_CONFIG,
                            "%s:%d: %s has the key \"%.40s\", which no cluster file has"
                            "; remove it",
                            r->path, line_of(node), where, name ? name : "");
    }
    for (int i = 0; i < n; i++)
        if (!value_of(r, map, key[i]))
            return err_fail(ERR_CONFIG, "%s:%d: %s has no %s; add it", r->path, line_of(map), where,
                            key[i]);
    if (found != n) return refuse(r, map, where, "has a key twice; remove one");
    return OK;
}

static Err read_device(const ClusterReader *r, const yaml_node_t *map, Cluster *c)
{
    static const char *const flops[] = {"peak_tflops", "gemm_tflops", "attention_tflops",
                                        "pointwise_tflops"};
    static const char *const all[] = {"memory_gib",       "peak_tflops",      "gemm_tflops",
                                      "attention_tflops", "pointwise_tflops", "memory_gbps",
                                      "host_gbps",        "launch_us"};
    double *const to[] = {c->peak_flops_per_s, c->rates.flops_per_s[WORK_GEMM],
                          c->rates.flops_per_s[WORK_ATTENTION],
                          c->rates.flops_per_s[WORK_POINTWISE]};
    ClusterNumber table[] = {
        {.key = "memory_gib", .unit = 0x1p30, .to = &c->memory_bytes},
        {.key = "memory_gbps", .unit = 1e9, .to = &c->rates.memory_Bps},
        {.key = "host_gbps", .unit = 1e9, .to = &c->rates.host_Bps},
        {.key = "launch_us", .unit = 1e-6, .to = &c->rates.launch_s, .may_be_zero = true}};
    TRY(check_keys(r, map, "device", all, 8));
    for (int i = 0; i < 4; i++) TRY(read_flops(r, value_of(r, map, flops[i]), flops[i], to[i]));
    for (int i = 0; i < 4; i++) TRY(read_number(r, value_of(r, map, table[i].key), &table[i]));
    return OK;
}

static Err read_link(const ClusterReader *r, const yaml_node_t *map, bool last, CostRates *rates)
{
    CostLink *link = &rates->level[rates->n_levels];
    const int before = rates->n_levels ? link[-1].ranks : 0;
    double ranks = 0;
    ClusterNumber table[] = {
        {.key = "latency_us", .unit = 1e-6, .to = &link->latency_s, .may_be_zero = true},
        {.key = "gbps", .unit = 1e9, .to = &link->Bps},
        {.key = "ranks", .unit = 1, .to = &ranks}};
    TRY(read_numbers(r, map, "links", table, last ? 2 : 3));
    link->ranks = (int)ranks;
    if (!last && (ranks != (double)link->ranks || link->ranks <= before ||
                  (before && link->ranks % before != 0)))
        return err_fail(ERR_CONFIG,
                        "%s:%d: links: ranks %g after %d; each level has a multiple of "
                        "the ranks before it",
                        r->path, line_of(map), ranks, before);
    rates->n_levels++;
    return OK;
}

static Err read_links(const ClusterReader *r, const yaml_node_t *list, CostRates *rates)
{
    if (list->type != YAML_SEQUENCE_NODE) return refuse(r, list, "links", "is not a list");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int n = (int)(list->data.sequence.items.top - first);
    if (n < 1 || n > MAX_LEVELS)
        return err_fail(ERR_CONFIG, "%s:%d: links: %d levels; a cluster has 1 to %d", r->path,
                        line_of(list), n, MAX_LEVELS);
    for (int i = 0; i < n; i++)
        TRY(read_link(r, yaml_document_get_node(r->doc, first[i]), i == n - 1, rates));
    return OK;
}

static Err read_root(const ClusterReader *r, Cluster *c)
{
    static const char *const keys[] = {"name", "overlap", "device", "links"};
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root)
        return err_fail(ERR_CONFIG,
                        "%s: is empty; a cluster file has name, overlap, device "
                        "and links",
                        r->path);
    TRY(check_keys(r, root, "the file", keys, 4));
    const yaml_node_t *overlap = value_of(r, root, "overlap");
    const char *name = scalar_of(value_of(r, root, "name")), *on = scalar_of(overlap);
    if (!name || !*name) return refuse(r, value_of(r, root, "name"), "name", "is not a text");
    if (!on || (strcmp(on, "true") != 0 && strcmp(on, "false") != 0))
        return refuse(r, overlap, "overlap", "is neither true nor false");
    c->overlaps = strcmp(on, "true") == 0;
    TRY(arena_string(r->arena, name, &c->name));
    TRY(read_device(r, value_of(r, root, "device"), c));
    return read_links(r, value_of(r, root, "links"), &c->rates);
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
