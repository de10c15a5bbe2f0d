/* args.c -- classifies the arguments after a verb. An argument that starts with `-` is a flag.
 * Letters, digits, dots and underscores followed by `=` are a key. Any other argument is the run
 * file. */
#include "cli/args.h"

#include <string.h>
#include "base/text.h"

enum { MAX_FLAGS = 32 };

static bool is_setting(const char *word)
{
    const size_t name = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789_.");
    return name > 0 && word[name] == '=';
}

static Err unknown_flag(const char *verb, const char *word, const Flag *flags, int n)
{
    const char *names[MAX_FLAGS];
    for (int i = 0; i < n; i++) names[i] = flags[i].name;
    const char *nearest = text_nearest(word, names, n);
    return err_fail(ERR_CONFIG, "%s: %.80s: unknown flag%s%s%s", verb, word,
                    nearest ? "; did you mean " : "; `sheaf help VERB` lists the flags of a verb",
                    nearest ? nearest : "", nearest ? "?" : "");
}

/* Reads the flag at argv[*i]. Its value follows after `=` or is the next argument; in the second
 * case *i moves to it. */
static Err take_flag(int argc, char **argv, int *i, const Flag *flags, int n)
{
    const char *word = argv[*i];
    const size_t length = strcspn(word, "=");
    for (int f = 0; f < n; f++) {
        if (strlen(flags[f].name) != length || strncmp(flags[f].name, word, length) != 0) continue;
        if (flags[f].given) *flags[f].given = true;
        if (!flags[f].value && word[length])
            return err_fail(ERR_CONFIG, "%s: %s takes no value", argv[0], flags[f].name);
        if (!flags[f].value) return OK;
        if (word[length] == '=') {
            *flags[f].value = word + length + 1;
            return OK;
        }
        if (*i + 1 == argc) return err_fail(ERR_CONFIG, "%s: %s needs a value", argv[0], word);
        *flags[f].value = argv[++*i];
        return OK;
    }
    return unknown_flag(argv[0], word, flags, n);
}

Err args_split(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, Args *out)
{
    Args args = {0};
    MUST(n_flags <= MAX_FLAGS, "%d flags", n_flags);
    TRY(ARENA_NEW(a, argc, &args.set));
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            TRY(take_flag(argc, argv, &i, flags, n_flags));
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
    *out = args;
    return OK;
}

Err args_plain(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, PlainArgs *out)
{
    PlainArgs words = {0};
    MUST(n_flags <= MAX_FLAGS, "%d flags", n_flags);
    TRY(ARENA_NEW(a, argc, &words.at));
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-')
            TRY(take_flag(argc, argv, &i, flags, n_flags));
        else
            words.at[words.n++] = argv[i];
    }
    *out = words;
    return OK;
}
