/* beside.h -- files that come with the program lie beside it: shared objects that it opens. */
#ifndef BASE_BESIDE_H
#define BASE_BESIDE_H

enum { BESIDE_BYTES = 4096 };

/* Local. `given`, or where it is NULL the file of that name beside the running program, in `room`;
 * the bare name where the system does not tell where that is. */
const char *path_beside(const char *given, const char *name, char room[BESIDE_BYTES]);

#endif
