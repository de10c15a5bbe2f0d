/* tables.c -- reads the tables of a cluster file: kernels by shape, collectives by size. */
#include <string.h>

#include "plan/cluster/parts.h"

static const char *const dtype_keys[] = {[F64] = "f64", [F32] = "f32", [BF16] = "bf16"};

/* {m: [..], n: [..], k: [..], tflops: [..]}: rates of all m x n x k, those of k side by side. */
static Err read_grid(const ClusterReader *r, const yaml_node_t *map, const CostGrid **out)
{
    static const char *const keys[] = {"m", "n", "k", "tflops"};
    CostGrid *g;
    double *rate;
    int n = 0;
    TRY(ARENA_NEW(r->arena, 1, &g));
    TRY(ARENA_NEW(r->arena, MAX_GRID * MAX_GRID * MAX_GRID, &rate));
    double *const to[] = {g->m, g->n, g->k};
    int *const count[] = {&g->n_m, &g->n_n, &g->n_k};
    TRY(cluster_keys(r, map, "gemm_table", keys, 4, 0));
    for (int i = 0; i < 3; i++)
        TRY(cluster_list(r, cluster_value(r, map, keys[i]),
                         &(ClusterList){keys[i], 1, MAX_GRID, true}, to[i], count[i]));
    TRY(cluster_list(r, cluster_value(r, map, "tflops"),
                     &(ClusterList){"tflops", 1e12, MAX_GRID * MAX_GRID * MAX_GRID, false}, rate,
                     &n));
    if (n != g->n_m * g->n_n * g->n_k)
        return err_fail(ERR_CONFIG, "%s:%d: gemm_table: tflops has %d numbers, not %d x %d x %d",
                        r->path, (int)map->start_mark.line + 1, n, g->n_m, g->n_n, g->n_k);
    g->rate = rate;
    *out = g;
    return OK;
}

/* Two lists of equal length: `x` rising, and `y`. */
static Err read_curve(const ClusterReader *r, const yaml_node_t *map, const char *where,
                      const ClusterList *x, const ClusterList *y, CostCurve *out)
{
    int n = 0;
    TRY(cluster_list(r, cluster_value(r, map, x->key), x, out->x, &out->n));
    TRY(cluster_list(r, cluster_value(r, map, y->key), y, out->y, &n));
    if (n == out->n) return OK;
    return err_fail(ERR_CONFIG, "%s:%d: %s: %d numbers of %s, %d of %s", r->path,
                    (int)map->start_mark.line + 1, where, out->n, x->key, n, y->key);
}

static Err read_attention(const ClusterReader *r, const yaml_node_t *map, const CostCurve **out)
{
    static const char *const keys[] = {"flops", "tflops"};
    CostCurve *c;
    TRY(ARENA_NEW(r->arena, 1, &c));
    TRY(cluster_keys(r, map, "attention_table", keys, 2, 0));
    *out = c;
    return read_curve(r, map, "attention_table", &(ClusterList){"flops", 1, MAX_CURVE, true},
                      &(ClusterList){"tflops", 1e12, MAX_CURVE, false}, c);
}

/* {width: 64, keys: [..], tflops: [..], back_tflops: [..]} */
static Err read_head(const ClusterReader *r, const yaml_node_t *map, CostAttention *a)
{
    static const char *const keys[] = {"width", "keys", "tflops", "back_tflops"};
    const ClusterList x = {"keys", 1, MAX_CURVE, true}, y = {"tflops", 1e12, MAX_CURVE, false},
                      back = {"back_tflops", 1e12, MAX_CURVE, false};
    const int i = a->n;
    ClusterNumber width = {.key = "width", .unit = 1, .to = &a->width[i]};
    TRY(cluster_keys(r, map, "attention_by_keys", keys, 4, 0));
    TRY(cluster_number(r, cluster_value(r, map, "width"), &width));
    if (i > 0 && a->width[i] <= a->width[i - 1])
        return cluster_refuse(r, map, "width", "is not above the one before it");
    TRY(read_curve(r, map, "attention_by_keys", &x, &y, &a->forward[i]));
    TRY(read_curve(r, map, "attention_by_keys", &x, &back, &a->backward[i]));
    a->n++;
    return OK;
}

static Err read_keyed(const ClusterReader *r, const yaml_node_t *list, const CostAttention **out)
{
    CostAttention *a;
    TRY(ARENA_NEW(r->arena, 1, &a));
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, "attention_by_keys", "is not a list of widths of heads");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int n = (int)(list->data.sequence.items.top - first);
    if (n < 1 || n > MAX_HEAD_WIDTHS)
        return err_fail(ERR_CONFIG, "%s:%d: attention_by_keys: %d widths of heads; write 1 to %d",
                        r->path, (int)list->start_mark.line + 1, n, MAX_HEAD_WIDTHS);
    for (int i = 0; i < n; i++) TRY(read_head(r, yaml_document_get_node(r->doc, first[i]), a));
    *out = a;
    return OK;
}

static Err read_memory(const ClusterReader *r, const yaml_node_t *map, const CostCurve **out)
{
    static const char *const keys[] = {"bytes", "gbps"};
    CostCurve *c;
    TRY(ARENA_NEW(r->arena, 1, &c));
    TRY(cluster_keys(r, map, "memory_table", keys, 2, 0));
    *out = c;
    return read_curve(r, map, "memory_table", &(ClusterList){"bytes", 1, MAX_CURVE, true},
                      &(ClusterList){"gbps", 1e9, MAX_CURVE, false}, c);
}

Err cluster_device_tables(const ClusterReader *r, const yaml_node_t *device, CostRates *rates)
{
    const yaml_node_t *gemm = cluster_value(r, device, "gemm_table");
    const yaml_node_t *attention = cluster_value(r, device, "attention_table");
    const yaml_node_t *keyed = cluster_value(r, device, "attention_by_keys");
    const yaml_node_t *memory = cluster_value(r, device, "memory_table");
    if (gemm) TRY(cluster_keys(r, gemm, "gemm_table", dtype_keys, 0, 3));
    if (attention) TRY(cluster_keys(r, attention, "attention_table", dtype_keys, 0, 3));
    if (keyed) TRY(cluster_keys(r, keyed, "attention_by_keys", dtype_keys, 0, 3));
    for (int t = F64; t <= BF16; t++) {
        const yaml_node_t *heads = keyed ? cluster_value(r, keyed, dtype_keys[t]) : NULL;
        const yaml_node_t *grid = gemm ? cluster_value(r, gemm, dtype_keys[t]) : NULL;
        const yaml_node_t *curve = attention ? cluster_value(r, attention, dtype_keys[t]) : NULL;
        if (grid) TRY(read_grid(r, grid, &rates->gemm[t]));
        if (curve) TRY(read_attention(r, curve, &rates->attention[t]));
        if (heads) TRY(read_keyed(r, heads, &rates->keyed[t]));
    }
    return memory ? read_memory(r, memory, &rates->memory) : OK;
}

static Err read_kind(const ClusterReader *r, const yaml_node_t *n, CommKind *out)
{
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER,
                                     COMM_ALL_TO_ALL, COMM_BROADCAST,  COMM_SEND};
    const char *text = cluster_scalar(n);
    for (size_t i = 0; text && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(comm_kind_name(kinds[i]), text) == 0) {
            *out = kinds[i];
            return OK;
        }
    return err_fail(ERR_CONFIG,
                    "%s:%d: kind: \"%.40s\" is none of all-reduce, all-gather, reduce-scatter, "
                    "all-to-all, broadcast, send",
                    r->path, (int)n->start_mark.line + 1, text ? text : "a list or map");
}

static Err read_level(const ClusterReader *r, const yaml_node_t *n, const CostRates *rates,
                      int *out)
{
    const char *text = cluster_scalar(n);
    for (*out = 0; *out < rates->n_levels; ++*out)
        if (text && rates->level[*out].name && strcmp(rates->level[*out].name, text) == 0)
            return OK;
    return cluster_refuse(r, n, "level", "is the name of no level of `links`; give one to both");
}

/* {kind: all_reduce, members: 8, level: node, inside: 1, bytes: [..], us: [..]} */
static Err read_table(const ClusterReader *r, const yaml_node_t *map, const CostRates *rates,
                      CostTable *out)
{
    static const char *const keys[] = {"kind", "members", "level", "bytes", "us", "inside"};
    double members = 0, inside = 1;
    ClusterNumber table[] = {{.key = "members", .unit = 1, .to = &members},
                             {.key = "inside", .unit = 1, .to = &inside}};
    TRY(cluster_keys(r, map, "collectives", keys, 5, 1));
    TRY(read_kind(r, cluster_value(r, map, "kind"), &out->kind));
    TRY(read_level(r, cluster_value(r, map, "level"), rates, &out->level));
    for (int i = 0; i < 2; i++) {
        const yaml_node_t *value = cluster_value(r, map, table[i].key);
        if (value) TRY(cluster_number(r, value, &table[i]));
    }
    out->members = (int)members;
    out->inside = (int)inside;
    if (members < 2 || members != (double)out->members || inside < 1 ||
        inside != (double)out->inside)
        return cluster_refuse(r, map, "collectives",
                              "members is a whole number above 1, inside one above 0");
    return read_curve(r, map, "collectives", &(ClusterList){"bytes", 1, MAX_CURVE, true},
                      &(ClusterList){"us", 1e-6, MAX_CURVE, false}, &out->seconds);
}

Err cluster_collectives(const ClusterReader *r, const yaml_node_t *list, CostRates *rates)
{
    CostTable *table;
    if (!list) return OK;
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, "collectives", "is not a list");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int n = (int)(list->data.sequence.items.top - first);
    TRY(ARENA_NEW(r->arena, n + 1, &table));
    for (int i = 0; i < n; i++)
        TRY(read_table(r, yaml_document_get_node(r->doc, first[i]), rates, &table[i]));
    rates->table = table;
    rates->n_tables = n;
    return OK;
}
