/* help.c -- `sheaf help`: verbs, sections and keys, printed from the tables that the program uses.
 *
 *     sheaf help              the verbs and the sections
 *     sheaf help optim        the keys of a section
 *     sheaf help optim.lr     one key: type, default, limits, meaning; `lr` finds it too
 *     sheaf help train        one verb: its arguments (flags.def), with examples */
#include <stdio.h>
#include <string.h>
#include "cli/config/renamed.h"
#include "cli/flags.h"
#include "cli/verbs.h"
#include "schedule/gen/generate.h"

enum { MAX_CHOICES = 32, MAX_COLUMN = 100, MAX_ROW = 64 };

/* Prints words from `column` on, then a line break. Lines end before MAX_COLUMN; the second and
 * later ones are indented. */
static void print_wrapped(int column, int indent, const char *text)
{
    const char *gap = "";
    while (*text) {
        const int word = (int)strcspn(text, " ");
        if (column + (int)strlen(gap) + word > MAX_COLUMN) {
            printf("\n%*s", indent, "");
            column = indent;
            gap = "";
        }
        column += printf("%s%.*s", gap, word, text);
        gap = " ";
        text += word + (text[word] == ' ');
    }
    printf("\n");
}

static void print_overview(void)
{
    puts("sheaf " SHEAF_VERSION ": trains transformers under every kind of parallelism\n");
    for (const Verb *v = verbs; v->name; v++)
        printf("  sheaf %-9s %s%s\n", v->name, v->meaning, v->run ? "" : " (not yet)");
    puts(
        "\nA run file is YAML with these sections. Every key is also an argument: optim.lr=1e-3\n");
    for (int i = 0; i < section_count(); i++)
        printf("  %-10s %s\n", section_at(i)->name, section_at(i)->meaning);
    puts(
        "\n`sheaf help VERB` shows its arguments, `sheaf help SECTION` lists its keys, `sheaf help "
        "KEY`\ndescribes one key.");
}

static const char *shown_default(const Key *key) { return *key->fallback ? key->fallback : "none"; }

/* Keys with a single supported value are marked: setting them has no effect yet. */
static void print_section(const char *section)
{
    char text[1024];
    printf("%s: %s\n\n", section, section_at(section_find(section))->meaning);
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        if (strcmp(key->section, section) != 0) continue;
        const bool fixed = key->works && !strchr(key->works, ' ');
        const int column = printf("  %-13s %-8s ", key->name, shown_default(key));
        snprintf(text, sizeof text, "%s%s", key->meaning, fixed ? " (not yet)" : "");
        print_wrapped(column, 25, text);
    }
    if (strcmp(section, "model") != 0) return;
    puts("\nand the fields of a config.json, which override those of the preset or the file:\n");
    ModelKey field;
    for (int i = 0; model_key(i, &field); i++) {
        const int column = printf("  %-45s ", field.key);
        snprintf(text, sizeof text, "%s%s%s%s", field.meaning, field.only ? " (only " : "",
                 field.only ? field.only : "", field.only ? ")" : "");
        print_wrapped(column, 48, text);
    }
}

static void print_type(const Key *key)
{
    static const char *const type[] = {
        [KEY_INT] = "a whole number",
        [KEY_FLOAT] = "a number",
        [KEY_BOOL] = "true or false",
        [KEY_TEXT] = "a text",
        [KEY_CHOICE] = "one of",
        [KEY_LIST] = "a list of texts, separated by commas; \\, is a comma in a text",
    };
    const char *texts[MAX_CHOICES];
    Option first;
    printf("  type     %s", type[key->type]);
    const int n = key->type == KEY_CHOICE ? key_options(key, texts, &first) : 0;
    for (int i = 0; i < n; i++) printf(" %s", texts[i]);
    if (key->type == KEY_INT || key->type == KEY_FLOAT)
        printf(", %.15g to %.15g%s", key->low, key->high,
               strcmp(key->fallback, "auto") == 0 ? ", or auto" : "");
    printf("\n");
}

static void print_schedules(void)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++) printf("  %-12s %s\n", row[i].name, row[i].about);
}

static void print_key(const Key *key)
{
    print_wrapped(printf("%s: ", key->path), 4, key->meaning);
    print_type(key);
    printf("  default  %s\n", shown_default(key));
    if (key->works) printf("  limit    only %s: %s\n", *key->works ? key->works : "none", key->why);
    if (strcmp(key->path, "parallel.schedule") == 0) print_schedules();
    if (strcmp(key->path, "model.name") != 0) return;
    char presets[1024] = "";
    size_t used = 0;
    for (int i = 0; model_preset_name(i) && used < sizeof presets; i++)
        used += (size_t)snprintf(presets + used, sizeof presets - used, "%s%s", i ? " " : "",
                                 model_preset_name(i));
    print_wrapped(printf("  presets  "), 11, presets);
}

static void print_model_field(const ModelKey *field)
{
    printf("model.%s: %s\n  families", field->key, field->meaning);
    for (int f = 0; f < N_FAMILIES; f++)
        if (field->families >> f & 1) printf(" %s", family_name((Family)f));
    printf("\n");
    if (field->only) printf("  limit    only %s\n", field->only);
}

/* Prints every key with this path ("optim.lr") or this name in any section ("lr"); returns their
 * number. */
static int print_keys_named(const char *word)
{
    int n = 0;
    ModelKey field;
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        if (strcmp(key->path, word) != 0 && strcmp(key->name, word) != 0) continue;
        print_key(key);
        n++;
    }
    const char *name = strncmp(word, "model.", 6) == 0 ? word + 6 : word;
    for (int i = 0; n == 0 && model_key(i, &field); i++) {
        if (strcmp(field.key, name) != 0) continue;
        print_model_field(&field);
        n++;
    }
    return n;
}

static Err unknown_word(const char *word)
{
    const char *now = renamed_path(word);
    if (now)
        return err_fail(ERR_CONFIG, "help: %.80s: now %s; `sheaf help %s` describes it", word, now,
                        now);
    const char *known[N_KEYS * 2 + MAX_SECTIONS + 32];
    int n = 0;
    for (int i = 0; i < section_count(); i++) known[n++] = section_at(i)->name;
    for (const Verb *v = verbs; v->name; v++) known[n++] = v->name;
    for (int i = 0; i < N_KEYS; i++) {
        known[n++] = key_at((KeyId)i)->path;
        known[n++] = key_at((KeyId)i)->name;
    }
    const char *nearest = text_nearest(word, known, n);
    return err_fail(ERR_CONFIG, "help: %.80s: no such key, section or verb%s%s%s", word,
                    nearest ? "; did you mean " : "; `sheaf help` lists verbs and sections",
                    nearest ? nearest : "", nearest ? "?" : "");
}

/* ---- verbs ---- */

static bool is_row(const FlagRow *r, const char *command, FlagRowKind kind)
{
    return r->kind == kind && strcmp(r->command, command) == 0;
}

/* "--trace FILE" */
static int name_row(const FlagRow *r, char out[MAX_ROW])
{
    return snprintf(out, MAX_ROW, "%s%s%s", r->name, r->value ? " " : "", r->value ? r->value : "");
}

static int widest_row(const char *command)
{
    char name[MAX_ROW];
    int widest = 0;
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (!is_row(r, command, ROW_FLAG) && !is_row(r, command, ROW_PLACE)) continue;
        const int n = name_row(r, name);
        if (n > widest) widest = n;
    }
    return widest;
}

static void print_rows(const char *command, FlagRowKind kind, int width)
{
    char name[MAX_ROW];
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (!is_row(r, command, kind)) continue;
        name_row(r, name);
        print_wrapped(printf("    %-*s", width + 3, name), width + 7, r->meaning);
    }
}

static void print_notes(const char *command)
{
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (!is_row(r, command, ROW_NOTE)) continue;
        printf("\n");
        print_wrapped(printf("  "), 2, r->meaning);
    }
}

static void print_examples(const char *command)
{
    for (const FlagRow *r = flag_rows; r->command; r++)
        if (is_row(r, command, ROW_EXAMPLE)) printf("\n  # %s\n  %s\n", r->meaning, r->name);
}

/* The arguments of a verb, or of a part of one. */
static void print_command(const char *command)
{
    const int width = widest_row(command);
    if (width > 0) printf("\n");
    print_rows(command, ROW_PLACE, width);
    print_rows(command, ROW_FLAG, width);
    print_notes(command);
    print_examples(command);
}

static void print_verb(const Verb *verb)
{
    const int column = printf("sheaf %s ", verb->name);
    print_wrapped(column, column, verb->usage);
    printf("  %s%s\n", verb->meaning, verb->run ? "" : " (not yet)");
    print_command(verb->name);
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (!is_row(r, verb->name, ROW_PART)) continue;
        printf("\nsheaf %s %s %s\n  %s\n", verb->name, r->name, r->value, r->meaning);
        print_command(r->name);
    }
}

int verb_help(int argc, char **argv)
{
    if (argc <= 1) {
        print_overview();
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        const Verb *verb = verb_find(argv[i]);
        const int section = section_find(argv[i]);
        if (section >= 0) print_section(argv[i]);
        if (section >= 0 && verb) printf("\n");
        if (verb) print_verb(verb);
        if (section >= 0 || verb) continue;
        if (print_keys_named(argv[i]) == 0) return cli_fail(unknown_word(argv[i]));
    }
    return 0;
}
