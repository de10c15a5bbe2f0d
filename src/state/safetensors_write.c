/* safetensors_write.c -- writes a header. The result is parsed before it is returned, so that no
 * refusable header is written. */
#include <string.h>
#include "state/safetensors.h"
#include "state/strict.h"

enum { LENGTH_BYTES = 8, ALIGN = 64 };

static void add_metadata(Text *t, const StFile *f)
{
    text_add(t, "\"__metadata__\":{");
    for (int i = 0; i < f->n_pairs; i++) {
        if (i) text_add(t, ",");
        strict_quote(t, f->pair[i].key);
        text_add(t, ":");
        strict_quote(t, f->pair[i].value);
    }
    text_add(t, "}");
}

static void add_tensor(Text *t, const StTensor *x)
{
    strict_quote(t, x->name);
    text_add(t, ":{\"dtype\":\"%s\",\"shape\":[", st_type_name(x->type));
    for (int d = 0; d < x->ndim; d++) text_add(t, "%s%lld", d ? "," : "", (long long)x->n[d]);
    text_add(t, "],\"data_offsets\":[%lld,%lld]}", (long long)x->at, (long long)(x->at + x->bytes));
}

Err st_header(const StFile *f, Arena *a, const char **head, size_t *bytes)
{
    StFile parsed;
    const char *made;
    Text t = text_in(a);
    text_add(&t, "%*s{", LENGTH_BYTES, "");
    if (f->n_pairs) add_metadata(&t, f);
    for (int i = 0; i < f->n; i++) {
        if (i || f->n_pairs) text_add(&t, ",");
        add_tensor(&t, &f->tensor[i]);
    }
    text_add(&t, "}");
    text_add(&t, "%*s", (int)(-t.length % ALIGN), "");
    const size_t length = t.length;
    TRY(text_done(&t, &made));
    char *first = (char *)(uintptr_t)made;
    for (int i = 0; i < LENGTH_BYTES; i++)
        first[i] = (char)(unsigned char)((length - LENGTH_BYTES) >> 8 * i);
    const size_t mark = arena_mark(a);
    TRY(st_parse(f->path, made, length, (int64_t)length + f->data_bytes, a, &parsed));
    arena_rewind(a, mark);
    *head = made;
    *bytes = length;
    return OK;
}
