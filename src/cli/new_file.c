/* new_file.c -- refuses to overwrite a file. */
#define _POSIX_C_SOURCE 200809L
#include "cli/new_file.h"

#include <sys/stat.h>

Err new_file_check(const char *flag, const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0) return OK;
    return err_fail(ERR_CONFIG, "%s %s: exists already; remove it or choose another name", flag,
                    path);
}
