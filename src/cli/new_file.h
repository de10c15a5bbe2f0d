/* new_file.h -- the check of files that a flag names for output: --svg, --schedule, --trace. */
#ifndef CLI_NEW_FILE_H
#define CLI_NEW_FILE_H

#include "base/err.h"

/* Local. ERR_CONFIG if `path` is a file with contents, or a link to one; `flag` is for the message.
 * Devices, FIFOs and empty files have nothing to lose. Called before any work, so that a refused
 * request costs no time. */
Err new_file_check(const char *flag, const char *path);
/* Local. As new_file_check, and ERR_IO if the file cannot be written now: no such folder, no
 * permission, a folder of that name. A file that the trial creates is removed again. For files in
 * folders that exist before the work. */
Err new_file_try(const char *flag, const char *path);
/* Local. Removes a file that could not be completed; a device stays. */
void new_file_remove(const char *path);
/* Local. Writes a text to the file. ERR_IO names the flag and the path, and nothing is left. */
Err new_file_write(const char *flag, const char *path, const char *text);

#endif
