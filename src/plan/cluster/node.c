/* node.c -- numbers, lists and maps of a cluster file. */
#include "plan/cluster/parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int line_of(const yaml_node_t *n) { return (int)n->start_mark.line + 1; }

const char *cluster_scalar(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

Err cluster_refuse(const ClusterReader *r, const yaml_node_t *n, const char *where,
                   const char *what)
{
    return err_fail(ERR_CONFIG, "%s:%d: %s: %s", r->path, line_of(n), where, what);
}

Err cluster_number(const ClusterReader *r, const yaml_node_t *n, ClusterNumber *number)
{
    const char *text = cluster_scalar(n);
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

Err cluster_numbers(const ClusterReader *r, const yaml_node_t *map, const char *where,
                    ClusterNumber *table, int n)
{
    if (map->type != YAML_MAPPING_NODE)
        return cluster_refuse(r, map, where, "is not a map of numbers");
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        const char *name = cluster_scalar(key);
        int i = 0;
        while (i < n && (!name || strcmp(table[i].key, name) != 0)) i++;
        if (i == n)
            return cluster_refuse(r, key, where, "has a key that no cluster file has; remove it");
        if (table[i].set) return cluster_refuse(r, key, name, "is there twice; remove one");
        TRY(cluster_number(r, yaml_document_get_node(r->doc, p->value), &table[i]));
    }
    for (int i = 0; i < n; i++)
        if (!table[i].set && !table[i].optional)
            return err_fail(ERR_CONFIG, "%s:%d: %s has no %s; add it", r->path, line_of(map), where,
                            table[i].key);
    return OK;
}

const yaml_node_t *cluster_value(const ClusterReader *r, const yaml_node_t *map, const char *key)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *name = cluster_scalar(yaml_document_get_node(r->doc, p->key));
        if (name && strcmp(name, key) == 0) return yaml_document_get_node(r->doc, p->value);
    }
    return NULL;
}

Err cluster_keys(const ClusterReader *r, const yaml_node_t *map, const char *where,
                 const char *const *key, int n, int n_optional)
{
    int found = 0, present = 0;
    if (map->type != YAML_MAPPING_NODE) return cluster_refuse(r, map, where, "is not a map");
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++, found++) {
        const yaml_node_t *node = yaml_document_get_node(r->doc, p->key);
        const char *name = cluster_scalar(node);
        int i = 0;
        while (i < n + n_optional && (!name || strcmp(key[i], name) != 0)) i++;
        if (i == n + n_optional)
            return err_fail(ERR_CONFIG,
                            "%s:%d: %s has the key \"%.40s\", which no cluster file has; remove "
                            "it; docs/CLUSTER.md lists the keys",
                            r->path, line_of(node), where, name ? name : "");
    }
    for (int i = 0; i < n; i++)
        if (!cluster_value(r, map, key[i]))
            return err_fail(ERR_CONFIG, "%s:%d: %s has no %s; add it", r->path, line_of(map), where,
                            key[i]);
    for (int i = 0; i < n + n_optional; i++) present += cluster_value(r, map, key[i]) != NULL;
    if (found != present) return cluster_refuse(r, map, where, "has a key twice; remove one");
    return OK;
}

Err cluster_list(const ClusterReader *r, const yaml_node_t *list, const ClusterList *kind,
                 double *to, int *n)
{
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, kind->key, "is not a list of numbers");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int64_t count = list->data.sequence.items.top - first;
    if (count < 1 || count > kind->most)
        return err_fail(ERR_CONFIG, "%s:%d: %s: %lld numbers; a list has 1 to %d", r->path,
                        line_of(list), kind->key, (long long)count, kind->most);
    for (int i = 0; i < (int)count; i++) {
        const yaml_node_t *at = yaml_document_get_node(r->doc, first[i]);
        TRY(cluster_number(r, at,
                           &(ClusterNumber){.key = kind->key, .unit = kind->unit, .to = &to[i]}));
        if (kind->rising && i > 0 && to[i] <= to[i - 1])
            return cluster_refuse(r, at, kind->key, "is not above the number before it");
    }
    *n = (int)count;
    return OK;
}
