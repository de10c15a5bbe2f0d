/* err.h -- error codes and messages.
 *
 * Faults of the environment (files, memory, peers, requests of a user) are returned as an Err. The
 * function that detects the fault writes the message; callers only pass the code up with TRY. A
 * message names the thing, the value, the limit and the way out. Faults of this program itself end
 * it: MUST.
 *
 * The message is per thread, so ranks that are threads do not mix theirs. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

typedef enum {
    OK = 0,
    ERR_CONFIG, /* a request that cannot be met: exit status 2 */
    ERR_NOMEM,
    ERR_IO,
    ERR_CHECK, /* a graph, program or schedule that is not well formed */
    ERR_PEER   /* another rank failed */
} Err;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        Err err_ = (call);                                                                         \
        if (err_ != OK) return err_;                                                               \
    } while (0)

/* Local. err_fail(code, format, ...) stores the formatted message for this thread and returns
 * `code`. It is a macro so that the compiler sees a code other than OK, and warns of no unset
 * output after TRY. */
#define err_fail(code, ...) err_is((code), err_keep(__VA_ARGS__))
int err_keep(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline Err err_is(Err code, int kept)
{
    (void)kept;
    return code;
}
/* Local. The message of this thread's latest failure; "" before the first. */
const char *err_text(void);

/* Checks an invariant of this program; aborts with a message. Always on: a wrong answer costs more
 * than a compare. */
#define MUST(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition)) err_bug(__FILE__, __LINE__, #condition, __VA_ARGS__);                    \
    } while (0)
void err_bug(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));

#endif
