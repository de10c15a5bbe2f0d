/* data.c -- `sheaf data`: dispatch to build, show and check. */
#include "cli/data/data.h"

#include <string.h>
#include "base/text.h"
#include "cli/verbs.h"

int verb_data(int argc, char **argv)
{
    static const char *const names[] = {"build", "show", "check"};
    int (*const run[])(int, char **) = {data_build, data_show, data_check};
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0) return run[i](argc - 1, argv + 1);
    const char *nearest = text_nearest(word, names, 3);
    return cli_fail(err_fail(ERR_CONFIG,
                             "data: %.80s%sneeds build, show or check%s%s%s; `sheaf data --help` "
                             "describes them",
                             word, *word ? ": " : "", nearest ? " (did you mean " : "",
                             nearest ? nearest : "", nearest ? "?)" : ""));
}
