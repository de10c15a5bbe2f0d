/* bytes.h -- files written byte by byte, for tests of what reads them: nothing here is of src/data.
 */
#ifndef SUPPORT_BYTES_H
#define SUPPORT_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *at;
    size_t bytes, room;
} Buffer;

void buffer_free(Buffer *b);
/* `width` bytes of x, the lowest first. */
void buffer_put(Buffer *b, uint64_t x, int width);
void buffer_text(Buffer *b, const char *text);
void buffer_raw(Buffer *b, const void *from, size_t bytes);
void buffer_set(Buffer *b, size_t at, uint64_t x, int width);

/* A folder of this process, made once and emptied by scratch_remove; the path of a file in it,
 * valid for the next eight calls. */
const char *scratch(const char *name);
void scratch_remove(void);
const char *scratch_write(const char *name, const Buffer *b);
const char *scratch_text(const char *name, const char *text);

#endif
