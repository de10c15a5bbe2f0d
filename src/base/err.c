/* err.c -- the message of the latest failure of each thread. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[2048];

int err_keep(const char *format, ...)
{
    char fresh[sizeof message]; /* an argument may point to the old message */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fresh, sizeof fresh, format, args);
    va_end(args);
    strcpy(message, fresh);
    return 0;
}

const char *err_text(void) { return message; }

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
