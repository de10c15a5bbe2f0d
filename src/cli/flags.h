/* flags.h -- the rows of flags.def as data: the parser and `sheaf help` read the same ones, so they
 * cannot disagree. */
#ifndef CLI_FLAGS_H
#define CLI_FLAGS_H

#include <stdbool.h>

typedef enum { ROW_PART, ROW_PLACE, ROW_FLAG, ROW_NOTE, ROW_EXAMPLE } FlagRowKind;

typedef struct {
    FlagRowKind kind;
    const char *command; /* "train"; "build" for `sheaf data build`; of a ROW_PART: its verb */
    const char *name;  /* "--trace"; of a ROW_PART: the part; of a ROW_EXAMPLE: the command line */
    const char *value; /* "FILE"; NULL: the flag has none; of a ROW_PART: its usage */
    const char *meaning;
    bool repeats; /* may be given several times */
} FlagRow;

/* The rows of flags.def, in its order, ended by a row without a command. */
extern const FlagRow flag_rows[];
/* Local. The flag with these first `length` characters; NULL: the command has none. */
const FlagRow *flag_find(const char *command, const char *name, int length);
/* Local. The verb of a command: "data" for "build", else the command. */
const char *flag_verb(const char *command);

#endif
