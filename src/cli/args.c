/* args.c -- classifies the arguments after a verb. An argument that starts with `-` is a flag.
 * Letters, digits, dots and underscores followed by `=` are a key. Any other argument is the run
 * file. */
#include "cli/args.h"

#include <stdint.h>
#include <string.h>
#include "base/text.h"
#include "cli/flags.h"

enum { MAX_FLAGS = 32 }; /* bits of take_flag's seen */

static bool is_setting(const char *word)
{
    const size_t name = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789_.");
    return name > 0 && word[name] == '=';
}

static Err unknown_flag(const char *command, const char *word, const Flag *flags, int n)
{
    const char *names[MAX_FLAGS];
    for (int i = 0; i < n; i++) names[i] = flags[i].name;
    const char *nearest = text_nearest(word, names, n);
    if (nearest)
        return err_fail(ERR_CONFIG, "%s: %.80s: unknown flag; did you mean %s?", command, word,
                        nearest);
    return err_fail(ERR_CONFIG, "%s: %.80s: unknown flag; `sheaf help %s` lists all", command, word,
                    flag_verb(command));
}

static const Flag *target_of(const FlagRow *row, const Flag *flags, int n)
{
    for (int f = 0; f < n; f++)
        if (strcmp(flags[f].name, row->name) == 0) return &flags[f];
    return NULL;
}

/* Each row of flags.def has a place in the verb, and each place a row. */
static void check_flags(const char *command, const Flag *flags, int n)
{
    int rows = 0;
    MUST(n <= MAX_FLAGS, "%d flags", n);
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (r->kind != ROW_FLAG || strcmp(r->command, command) != 0) continue;
        const Flag *to = target_of(r, flags, n);
        MUST(to && !to->value == !r->value, "%s %s: not as in flags.def", command, r->name);
        rows++;
    }
    MUST(rows == n, "%s has %d flags, and %d in flags.def", command, n, rows);
}

/* Reads the flag at argv[*i]. Its value follows after `=` or is the next argument; in the second
 * case *i moves to it. *seen has a bit for each flag that was given before. */
static Err take_flag(int argc, char **argv, int *i, const Flag *flags, int n, uint32_t *seen)
{
    const char *word = argv[*i];
    const size_t length = strcspn(word, "=");
    const FlagRow *row = flag_find(argv[0], word, (int)length);
    if (!row) return unknown_flag(argv[0], word, flags, n);
    const Flag *to = target_of(row, flags, n);
    const uint32_t bit = UINT32_C(1) << (to - flags);
    if (*seen & bit && !row->repeats)
        return err_fail(ERR_CONFIG, "%s: %s is given again; keep one", argv[0], row->name);
    *seen |= bit;
    if (to->given) *to->given = true;
    if (!row->value && word[length])
        return err_fail(ERR_CONFIG, "%s: %s takes no value", argv[0], row->name);
    if (!row->value) return OK;
    if (word[length] == '=') {
        *to->value = word + length + 1;
        return OK;
    }
    if (*i + 1 == argc) return err_fail(ERR_CONFIG, "%s: %s needs a value", argv[0], word);
    *to->value = argv[++*i];
    return OK;
}

Err args_split(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, Args *out)
{
    Args args = {0};
    uint32_t seen = 0;
    out->plan = NULL; /* a flag may store its value there */
    check_flags(argv[0], flags, n_flags);
    TRY(ARENA_NEW(a, argc, &args.set));
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            TRY(take_flag(argc, argv, &i, flags, n_flags, &seen));
        } else if (is_setting(argv[i])) {
            args.set[args.n_set++] = argv[i];
        } else if (args.file) {
            return err_fail(ERR_CONFIG,
                            "%s: %.80s: a second file, after %.80s; keys are written as "
                            "section.key=value",
                            argv[0], argv[i], args.file);
        } else {
            args.file = argv[i];
        }
    }
    args.plan = out->plan;
    *out = args;
    return OK;
}

Err args_plain(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, PlainArgs *out)
{
    PlainArgs words = {0};
    uint32_t seen = 0;
    check_flags(argv[0], flags, n_flags);
    TRY(ARENA_NEW(a, argc, &words.at));
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            TRY(take_flag(argc, argv, &i, flags, n_flags, &seen));
        else
            words.at[words.n++] = argv[i];
    }
    *out = words;
    return OK;
}
