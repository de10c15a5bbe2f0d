/* write_error.h -- the reason of a failed write, with the way out. */
#ifndef BASE_WRITE_ERROR_H
#define BASE_WRITE_ERROR_H

/* Local. The text of an errno of open, mkdir, write, fsync or rename, and the way out if there is a
 * known one: "No space left on device; free space on that disk". Valid until the next call of this
 * thread. */
const char *write_error_text(int code);

#endif
