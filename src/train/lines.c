/* lines.c -- truncates a file of JSON lines to a step, and opens it. */
#define _POSIX_C_SOURCE 200809L
#include "train/lines.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/write_error.h"

/* True for a complete line of a step up to `step`. */
static bool counts(const char *line, ssize_t length, int64_t step)
{
    long long at;
    const bool whole = length > 2 && line[length - 1] == '\n' && line[length - 2] == '}';
    return whole && sscanf(line, "{\"step\": %lld", &at) == 1 && at <= step;
}

/* Copies the lines that count to `to`, unless it is NULL; *cut: there are others. */
static Err copy_counted(FILE *from, FILE *to, int64_t step, bool *cut)
{
    char *line = NULL;
    size_t room = 0;
    bool good = true;
    ssize_t length;
    while (good && (length = getline(&line, &room, from)) >= 0) {
        if (!counts(line, length, step))
            *cut = true;
        else if (to)
            good = fwrite(line, 1, (size_t)length, to) == (size_t)length;
    }
    good = good && !ferror(from) && (!to || (fflush(to) == 0 && fsync(fileno(to)) == 0));
    const int why = errno;
    free(line);
    return good ? OK : err_fail(ERR_IO, "%s", write_error_text(why));
}

/* Replaces the file by one with the lines that count. */
static Err replace(FILE *from, const char *path, int64_t step)
{
    char fresh[1200];
    bool cut;
    snprintf(fresh, sizeof fresh, "%s.tmp", path);
    rewind(from);
    FILE *to = fopen(fresh, "w");
    if (!to) return err_fail(ERR_IO, "%s", write_error_text(errno));
    Err err = copy_counted(from, to, step, &cut);
    const bool closed = fclose(to) == 0;
    if (err == OK && (!closed || rename(fresh, path) != 0))
        err = err_fail(ERR_IO, "%s", write_error_text(errno));
    if (err != OK) unlink(fresh);
    return err;
}

/* A file that needs no change is not rewritten: the disk may be full. */
Err lines_cut(const char *path, int64_t step)
{
    bool cut = false;
    FILE *from = fopen(path, "r");
    if (!from && errno == ENOENT) return OK;
    Err err = from ? copy_counted(from, NULL, step, &cut)
                   : err_fail(ERR_IO, "%s", write_error_text(errno));
    if (err == OK && cut) err = replace(from, path, step);
    if (from) fclose(from);
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

int64_t lines_mark(FILE *f)
{
    struct stat st;
    return fstat(fileno(f), &st) == 0 ? (int64_t)st.st_size : 0;
}

Err lines_flush(FILE *f, int64_t mark)
{
    if (fflush(f) == 0 && !ferror(f)) return OK;
    const int why = errno;
    __fpurge(f);
    clearerr(f);
    if (ftruncate(fileno(f), mark) != 0)
        return err_fail(ERR_IO, "%s, and a part of a line stays", write_error_text(why));
    return err_fail(ERR_IO, "%s", write_error_text(why));
}

void lines_number(FILE *f, const char *key, double x)
{
    if (isfinite(x))
        fprintf(f, ", \"%s\": %.9g", key, x);
    else
        fprintf(f, ", \"%s\": null", key);
}
