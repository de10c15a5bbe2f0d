/* main.c -- the program; all it does is in verbs.c, where tests reach it. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "cli/verbs.h"

/* A stream that the caller closed would be the number of the next file that is opened, and what is printed
 * would go into it. */
static void fill_streams(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

int main(int argc, char **argv)
{
    fill_streams();
    const int status = cli_run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fputs("sheaf: standard output cannot be written; is the disk full?\n", stderr);
    return status ? status : 1;
}
