/* new_file.c -- refuses to overwrite a file; writes a text. */
#define _POSIX_C_SOURCE 200809L
#include "cli/new_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

Err new_file_check(const char *flag, const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0) return OK;
    return err_fail(ERR_CONFIG, "%s %s: exists already; remove it or choose another name", flag,
                    path);
}

Err new_file_try(const char *flag, const char *path)
{
    struct stat s;
    TRY(new_file_check(flag, path));
    const bool exists = stat(path, &s) == 0;
    if (exists && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode)) return OK; /* opening it may wait */
    FILE *f = fopen(path, "a");
    if (!f) return err_fail(ERR_IO, "%s %s: cannot be written: %s", flag, path, strerror(errno));
    fclose(f);
    if (!exists) remove(path);
    return OK;
}

void new_file_remove(const char *path)
{
    struct stat s;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode)) remove(path);
}

Err new_file_write(const char *flag, const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    bool ok = f && fputs(text, f) >= 0 && fflush(f) == 0;
    int why = errno;
    if (f && fclose(f) != 0 && ok) ok = false, why = errno;
    if (ok) return OK;
    new_file_remove(path);
    return err_fail(ERR_IO, "%s %s: cannot be written: %s", flag, path, strerror(why));
}
