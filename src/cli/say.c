/* say.c -- one line on stderr that is written over, and gone at the end. */
#define _POSIX_C_SOURCE 200809L
#include "cli/say.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

Progress progress_begin(const char *what, const char *path, int64_t total)
{
    return (Progress){what, path, total, -1, isatty(STDERR_FILENO) == 1};
}

void progress_at(Progress *p, int64_t done)
{
    const int percent = p->total > 0 ? (int)(100.0 * (double)done / (double)p->total) : 100;
    if (!p->on || percent == p->percent) return;
    p->percent = percent;
    fprintf(stderr, "\r%s %.60s: %d%%\033[K", p->what, p->path, percent);
    fflush(stderr);
}

void progress_end(Progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
}

const char *say_count(int64_t n, char *buffer)
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
