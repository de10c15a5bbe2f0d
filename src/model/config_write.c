/* config_write.c -- writes a model as a config.json with every key that its family reads.
 *
 * All values are resolved: keys that other files omit or set to null are written with their value.
 * Hence two models are equal exactly if their texts are equal. */
#include "model/config_rows.h"

#include <string.h>

static const char nested[] = "rope_scaling.";

static void put_key(Text *out, const char *key, bool *first)
{
    text_add(out, "%s\"%s\": ", *first ? "" : ", ", key);
    *first = false;
}

static bool is_written(const Row *row, const Draft *d)
{
    const void *member = (const char *)d + row->member;
    if (row->kind == ROW_ONLY) return false;
    if (row->kind == ROW_LIST) return *(const char *const *)member != NULL;
    if (row->member == offsetof(Draft, window_layers)) return d->use_window;
    if (row->kind == ROW_INT) return *(const int64_t *)member > 0 || row->required;
    if (strncmp(row->key, nested, strlen(nested)) == 0) /* zero: numbers of another scaling type */
        return row->kind == ROW_TEXT || *(const double *)member > 0;
    return true;
}

static void put_row(const Row *row, const Draft *d, const char *key, Text *out, bool *first)
{
    const void *member = (const char *)d + row->member;
    if (!is_written(row, d)) return;
    put_key(out, key, first);
    if (row->kind == ROW_LIST)
        text_add(out, "[%s]", *(const char *const *)member);
    else if (row->null_ok && *(const int64_t *)member == 0)
        text_add(out, "null");
    else if (row->kind == ROW_INT)
        text_add(out, "%lld", (long long)*(const int64_t *)member);
    else if (row->kind == ROW_FLOAT)
        text_add(out, "%.17g", *(const double *)member);
    else if (row->kind == ROW_BOOL)
        text_add(out, "%s", *(const bool *)member ? "true" : "false");
    else
        text_add(out, "\"%s\"", *(const char *const *)member);
}

static void put_rows(const Draft *d, bool rope, Text *out, bool *first)
{
    for (int i = 0; i < row_count(); i++) {
        const Row *row = row_at(i);
        const bool inside = strncmp(row->key, nested, strlen(nested)) == 0;
        if (!(row->families >> d->c.family & 1) || inside != rope) continue;
        put_row(row, d, inside ? row->key + strlen(nested) : row->key, out, first);
    }
}

void model_config_json(const ModelConfig *c, Text *out)
{
    static const char *const scaling[] = {"default", "linear", "llama3"};
    const Draft d = {.c = *c,
                     .model_type = family_name(c->family),
                     .use_window = c->window > 0,
                     .rope_type = scaling[c->rope.scaling]};
    bool first = true;
    text_add(out, "{");
    put_rows(&d, false, out, &first);
    if (c->rope.scaling != ROPE_PLAIN) {
        put_key(out, "rope_scaling", &first);
        text_add(out, "{");
        first = true;
        put_rows(&d, true, out, &first);
        text_add(out, "}");
    }
    text_add(out, "}");
}
