/* bytes.h -- files written byte by byte, for tests of their readers; independent of src/data. */
#ifndef SUPPORT_BYTES_H
#define SUPPORT_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *at;
    size_t bytes, room;
} Buffer;

void buffer_free(Buffer *b);
/* Appends `width` bytes of x, little-endian. */
void buffer_put(Buffer *b, uint64_t x, int width);
void buffer_text(Buffer *b, const char *text);
void buffer_raw(Buffer *b, const void *from, size_t bytes);
void buffer_set(Buffer *b, size_t at, uint64_t x, int width);

/* Returns the path of a file in a folder of this process, valid for the next eight calls. The
 * folder is created once and emptied by scratch_remove. */
const char *scratch(const char *name);
void scratch_remove(void);
const char *scratch_write(const char *name, const Buffer *b);
const char *scratch_text(const char *name, const char *text);

#endif
