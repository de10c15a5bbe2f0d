/* report.h -- the text of a hang report, which backends append to; text that does not fit is cut
 * off. */
#ifndef COMM_REPORT_H
#define COMM_REPORT_H

#include <stdarg.h>
#include <stdio.h>
#include "comm/backend.h"

typedef struct {
    char text[COMM_TEXT_BYTES -
              64]; /* shorter than a message: other ranks prefix it with "rank 3: " */
    int used;
} Report;

__attribute__((format(printf, 2, 3))) static inline void report_add(Report *r, const char *format,
                                                                    ...)
{
    const int left = (int)sizeof r->text - r->used;
    va_list args;
    va_start(args, format);
    const int wrote = vsnprintf(r->text + r->used, (size_t)left, format, args);
    va_end(args);
    r->used += wrote < left ? wrote : left - 1;
}

#endif
