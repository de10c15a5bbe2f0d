/* err.c -- the message of the latest failure, one per thread. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local char message[2048];

Err err_fail(Err code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}

const char *err_text(void)
{
    return message;
}

void err_bug(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "sheaf: a bug in sheaf, at %s:%d: %s does not hold: ", file, line, condition);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}
