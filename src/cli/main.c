/* main.c -- the program; all it does is in verbs.c, where tests reach it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "cli/verbs.h"
#include "cli/worker.h"
#include "device/open.h"

/* A stream that the caller closed would be the number of the next file that is opened, and what is
 * printed would go into it. */
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
    device_cuda_search(getenv("PATH")); /* only cli/ reads the environment */
    return worker_flush(cli_run(argc, argv));
}
