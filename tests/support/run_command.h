/* run_command.h -- runs the command inside a test and keeps its exit status and output. Include
 * <cmocka.h> first, and define _POSIX_C_SOURCE. */
#ifndef SUPPORT_RUN_COMMAND_H
#define SUPPORT_RUN_COMMAND_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "cli/verbs.h"

enum { MAX_WORDS = 12 };

static char output[1 << 14];

/* Runs `sheaf WORD ...`; its stdout and stderr are in `output`. */
static inline int sheaf(const char *const *words)
{
    char *argv[MAX_WORDS + 2] = {"sheaf"};
    int argc = 1, kept[2];
    for (; words[argc - 1]; argc++) argv[argc] = (char *)words[argc - 1];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    for (int fd = 1; fd <= 2; fd++) {
        kept[fd - 1] = dup(fd);
        assert_true(kept[fd - 1] >= 0 && dup2(fileno(file), fd) == fd);
    }
    const int status = cli_run(argc, argv);
    fflush(stdout);
    for (int fd = 1; fd <= 2; fd++) {
        dup2(kept[fd - 1], fd);
        close(kept[fd - 1]);
    }
    rewind(file);
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    return status;
}

#define SHEAF(...) sheaf((const char *const[]){__VA_ARGS__, NULL})

static inline void assert_printed(const char *part)
{
    if (!strstr(output, part)) fail_msg("\"%s\" is not in: %s", part, output);
}

#endif
