/* progress.c -- one line on stderr, overwritten in place and erased at the end. */
#define _POSIX_C_SOURCE 200809L
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

ProgressLine progress_begin(const char *what, const char *path, int64_t total)
{
    return (ProgressLine){what, path, total, -1, isatty(STDERR_FILENO) == 1};
}

void progress_at(ProgressLine *p, int64_t done)
{
    const int percent = p->total > 0 ? (int)(100.0 * (double)done / (double)p->total) : 100;
    if (!p->on || percent == p->percent) return;
    p->percent = percent;
    fprintf(stderr, "\r%s %.60s: %d%%\033[K", p->what, p->path, percent);
    fflush(stderr);
}

void progress_parts(void *line, int done, int total)
{
    ProgressLine *p = line;
    p->total = total;
    progress_at(p, done);
}

void progress_end(ProgressLine *p)
{
    if (p->on) fputs("\r\033[K", stderr);
}

const char *grouped_digits(int64_t n, char *buffer)
{
    char digits[COUNT_BYTES];
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)(n < 0 ? -n : n));
    char *out = buffer;
    if (n < 0) *out++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return buffer;
}
