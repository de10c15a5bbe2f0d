/* main.c -- the program; all it does is in verbs.c, where tests reach it. */
#include <stdio.h>
#include "cli/verbs.h"

int main(int argc, char **argv)
{
    const int status = cli_run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fputs("sheaf: standard output cannot be written; is the disk full?\n", stderr);
    return status ? status : 1;
}
