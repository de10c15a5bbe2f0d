/* lines.c -- truncates a file of JSON lines to a step, and opens it. */
#define _POSIX_C_SOURCE 200809L
#include "train/lines.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/write_error.h"

/* True for a complete line of a step up to `step`. */
static bool counts(const char *line, ssize_t length, int64_t step)
{
    long long at;
    const bool whole = length > 2 && line[length - 1] == '\n' && line[length - 2] == '}';
    return whole && sscanf(line, "{\"step\": %lld", &at) == 1 && at <= step;
}

static Err copy_counted(FILE *from, FILE *to, int64_t step, bool *cut)
{
    char *line = NULL;
    size_t room = 0;
    bool good = true;
    ssize_t length;
    while (good && (length = getline(&line, &room, from)) >= 0) {
        if (counts(line, length, step))
            good = fwrite(line, 1, (size_t)length, to) == (size_t)length;
        else
            *cut = true;
    }
    good = good && !ferror(from) && fflush(to) == 0 && fsync(fileno(to)) == 0;
    const int why = errno;
    free(line);
    return good ? OK : err_fail(ERR_IO, "%s", strerror(why));
}

Err lines_cut(const char *path, int64_t step)
{
    char fresh[1200];
    bool cut = false;
    snprintf(fresh, sizeof fresh, "%s.tmp", path);
    FILE *from = fopen(path, "r");
    if (!from && errno == ENOENT) return OK;
    FILE *to = from ? fopen(fresh, "w") : NULL;
    Err err = to ? copy_counted(from, to, step, &cut) : err_fail(ERR_IO, "%s", strerror(errno));
    if (from) fclose(from);
    if (to && fclose(to) != 0 && err == OK) err = err_fail(ERR_IO, "%s", strerror(errno));
    if (err == OK && cut && rename(fresh, path) != 0) err = err_fail(ERR_IO, "%s", strerror(errno));
    if (to && (err != OK || !cut)) unlink(fresh);
    if (err == OK) return OK;
    return err_fail(ERR_IO, "%s: cannot be truncated to step %lld: %s", path, (long long)step,
                    err_text());
}

Err lines_open(const char *path, int64_t step, FILE **out)
{
    TRY(lines_cut(path, step));
    *out = fopen(path, "a");
    return *out ? OK : err_fail(ERR_IO, "%s: cannot be written: %s", path, write_error_text(errno));
}

void lines_number(FILE *f, const char *key, double x)
{
    if (isfinite(x))
        fprintf(f, ", \"%s\": %.9g", key, x);
    else
        fprintf(f, ", \"%s\": null", key);
}
