/* main.c -- the process. Everything else is behind cli_run (verbs.c), which tests can call. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "cli/verbs.h"
#include "cli/worker.h"
#include "device/registry.h"

/* Opens /dev/null for every standard stream that the caller has closed. Otherwise the next file
 * that is opened would get its number, and printed text would go into that file. */
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
