/* yaml.c -- a run file or a plan file as pairs of key and value.
 *
 *     optim:            --> {section "optim", name "lr", text "1e-3", origin "run.yaml:2"}
 *       lr: 1e-3
 *
 * A run file is one document: sections, keys below them, and a scalar or a list of scalars for each
 * key. The rest of YAML (anchors, aliases, tags, directives, nested maps, a second document) is
 * refused, so that a file has one reading and a person can check it. */
#include "cli/config/keys.h"

#include <string.h>
#include <yaml.h>

typedef struct {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; next() frees it */
    const char *path;
    Arena *arena;
    KeyValues *out;
    const char *const *sections; /* [n_sections]; NULL: those of a run file */
    int n_sections;
    int line; /* of the current event */
    const char *section;
    int section_line
        [MAX_SECTIONS]; /* first line of each, for the message about a duplicate; 0: none */
} YamlReader;

static Err refuse(const YamlReader *r, const char *what, const char *way_out)
{
    return err_fail(ERR_CONFIG, "%s:%d: %s; %s", r->path, r->line, what, way_out);
}

/* Refuses the features of YAML that a run file does not use. */
static Err check_plain(const YamlReader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_ALIAS_EVENT) return refuse(r, "an alias (*name)", "write the value out");
    if (e->type == YAML_SCALAR_EVENT) anchor = e->data.scalar.anchor, tag = e->data.scalar.tag;
    if (e->type == YAML_MAPPING_START_EVENT)
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
    if (e->type == YAML_SEQUENCE_START_EVENT)
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
    if (anchor) return refuse(r, "an anchor (&name)", "remove it; values are written out");
    if (tag) return refuse(r, "a tag (!name)", "remove it; each key has its own type");
    if (e->type == YAML_DOCUMENT_START_EVENT &&
        (e->data.document_start.version_directive ||
         e->data.document_start.tag_directives.start != e->data.document_start.tag_directives.end))
        return refuse(r, "a directive (%...)", "remove it");
    return OK;
}

/* Advances to the next event. */
static Err next(YamlReader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        const yaml_parser_t *p = &r->parser;
        memset(&r->event, 0, sizeof r->event);
        return err_fail(ERR_CONFIG, "%s:%d: not YAML: %s%s%s; correct the file there", r->path,
                        (int)p->problem_mark.line + 1, p->context ? p->context : "",
                        p->context ? ": " : "", p->problem ? p->problem : "unreadable");
    }
    r->line = (int)r->event.start_mark.line + 1;
    return check_plain(r);
}

/* Copies the current scalar. */
static Err scalar(YamlReader *r, const char **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    if (strlen(text) != r->event.data.scalar.length)
        return refuse(r, "a NUL character in a text", "remove it");
    return arena_string(r->arena, text, out);
}

static Err at_line(const YamlReader *r, const char **out)
{
    Text t = text_in(r->arena);
    text_add(&t, "%s:%d", r->path, r->line);
    return text_done(&t, out);
}

static bool is_empty_scalar(const YamlReader *r)
{
    return r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0 &&
           r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Reads the items after "[" and joins them by commas; a backslash precedes commas and backslashes
 * of an item. next() does not allocate from the arena, so the text may grow at its end. */
static Err read_list(YamlReader *r, WrittenValue *value)
{
    Text joined = text_in(r->arena);
    for (int n = 0;; n++) {
        TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        if (r->event.type != YAML_SCALAR_EVENT)
            return refuse(r, "a list or map inside of a list", "a list holds plain values");
        const char *item = (const char *)r->event.data.scalar.value;
        if (!*item || strlen(item) != r->event.data.scalar.length)
            return refuse(r, "an item that is empty or holds a NUL", "write one value per item");
        text_add(&joined, "%s", n ? "," : "");
        for (; *item; item++)
            text_add(&joined, "%s%c", *item == ',' || *item == '\\' ? "\\" : "", *item);
    }
    value->sequence = value->quoted = true;
    return text_done(&joined, &value->text);
}

static Err read_value(YamlReader *r, KeyValue *pair)
{
    TRY(next(r));
    pair->line = r->line;
    TRY(at_line(r, &pair->value.origin));
    if (r->event.type == YAML_SEQUENCE_START_EVENT) return read_list(r, &pair->value);
    if (r->event.type != YAML_SCALAR_EVENT)
        return err_fail(ERR_CONFIG,
                        "%s: %s.%.80s: a map, and keys hold plain values; write nested names with "
                        "a dot (rope_scaling.factor: 8)",
                        pair->value.origin, pair->section, pair->name);
    pair->value.quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return scalar(r, &pair->value.text);
}

static Err read_section(YamlReader *r)
{
    for (;;) {
        KeyValue pair = {.section = r->section};
        TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return refuse(r, "a key that is a list or a map", "keys are plain names");
        TRY(scalar(r, &pair.name));
        TRY(read_value(r, &pair));
        if (r->out->n == MAX_PAIRS)
            return refuse(r, "more keys than there are", "is this a run file?");
        r->out->at[r->out->n++] = pair;
    }
}

/* The index of the section in r->sections or in keys.def, or -1. */
static int find_section(const YamlReader *r)
{
    for (int i = 0; i < r->n_sections; i++)
        if (strcmp(r->sections[i], r->section) == 0) return i;
    return r->sections ? -1 : section_find(r->section);
}

static Err unknown_section(const YamlReader *r, const char *origin)
{
    if (!r->sections) return key_unknown(origin, r->section, "");
    const char *nearest = text_nearest(r->section, r->sections, r->n_sections);
    return err_fail(ERR_CONFIG, "%s: %.80s: there is no such section%s%s%s; remove it", origin,
                    r->section, nearest ? "; did you mean " : "", nearest ? nearest : "",
                    nearest ? "?" : "");
}

static Err open_section(YamlReader *r)
{
    const char *origin;
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, "a section that is a list or a map", "sections are plain names");
    TRY(scalar(r, &r->section));
    TRY(at_line(r, &origin));
    const int s = find_section(r);
    if (s < 0) return unknown_section(r, origin);
    if (r->section_line[s])
        return err_fail(ERR_CONFIG, "%s: section %s again; the first is in line %d: join them",
                        origin, r->section, r->section_line[s]);
    r->section_line[s] = r->line;
    return OK;
}

static Err read_sections(YamlReader *r)
{
    if (is_empty_scalar(r)) return OK; /* a file with only "---" */
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return refuse(r, "not a map of sections", "a run file starts as `model:` does");
    for (;;) {
        TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return OK;
        TRY(open_section(r));
        TRY(next(r));
        if (r->event.type == YAML_MAPPING_START_EVENT)
            TRY(read_section(r));
        else if (!is_empty_scalar(r))
            return err_fail(ERR_CONFIG,
                            "%s:%d: %s: a section holds keys; write them below it, indented",
                            r->path, r->line, r->section);
    }
}

static Err read_stream(YamlReader *r)
{
    TRY(next(r)); /* start of the stream */
    TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return OK; /* an empty file sets no key */
    TRY(next(r));
    TRY(read_sections(r));
    TRY(next(r)); /* end of the document */
    TRY(next(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return refuse(r, "a second document", "a run file is one; remove the line of dashes");
    return OK;
}

/* Checks the encoding before libyaml sees the text, to name the line and the byte. A NUL follows
 * the last byte. */
static Err check_bytes(const char *path, const char *text, size_t length)
{
    const size_t nul = strlen(text), valid = text_utf8_bytes(text, length);
    const size_t end = nul < valid ? nul : valid;
    int line = 1;
    if (end == length) return OK;
    for (size_t i = 0; i < end; i++) line += text[i] == '\n';
    if (nul == end)
        return err_fail(ERR_CONFIG, "%s:%d: a NUL byte; a run file is text: remove it", path, line);
    return err_fail(ERR_CONFIG, "%s:%d: byte 0x%02X is not UTF-8; save the file as UTF-8", path,
                    line, (unsigned char)text[end]);
}

/* Returns the bytes of the byte order mark that some editors put before the text. */
static size_t mark_bytes(const char *text) { return strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; }

Err pairs_parse(const YamlSource *from, Arena *a, KeyValues *out)
{
    YamlReader r = {.path = from->path,
                    .arena = a,
                    .out = out,
                    .sections = from->sections,
                    .n_sections = from->n_sections,
                    .line = 1};
    out->n = 0;
    TRY(check_bytes(from->path, from->text, from->length));
    TRY(ARENA_NEW(a, MAX_PAIRS, &out->at));
    if (!yaml_parser_initialize(&r.parser)) return err_fail(ERR_NOMEM, "%s: no memory", from->path);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    const size_t mark = mark_bytes(from->text);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)from->text + mark,
                                 from->length - mark);
    const Err err = read_stream(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return err;
}

Err pairs_read(const char *path, Arena *a, KeyValues *out)
{
    YamlSource from = {.path = path};
    TRY(text_read_file(path, MAX_YAML_BYTES, a, &from.text, &from.length));
    return pairs_parse(&from, a, out);
}
