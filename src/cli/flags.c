/* flags.c -- the table of flags.def, and lookups in it. */
#include "cli/flags.h"

#include <stddef.h>
#include <string.h>

#define PART(verb, part, usage, meaning) {ROW_PART, #verb, #part, usage, meaning, false},
#define PLACE(command, name, meaning) {ROW_PLACE, #command, name, NULL, meaning, false},
#define FLAG(command, name, value, meaning) {ROW_FLAG, #command, name, value, meaning, false},
#define REPEATED(command, name, value, meaning) {ROW_FLAG, #command, name, value, meaning, true},
#define NOTE(command, text) {ROW_NOTE, #command, NULL, NULL, text, false},
#define EXAMPLE(command, line, meaning) {ROW_EXAMPLE, #command, line, NULL, meaning, false},

const FlagRow flag_rows[] = {
#include "cli/flags.def"
    {ROW_NOTE, NULL, NULL, NULL, NULL, false}};

const FlagRow *flag_find(const char *command, const char *name, int length)
{
    for (const FlagRow *r = flag_rows; r->command; r++)
        if (r->kind == ROW_FLAG && strcmp(r->command, command) == 0 &&
            (int)strlen(r->name) == length && strncmp(r->name, name, (size_t)length) == 0)
            return r;
    return NULL;
}

const char *flag_verb(const char *command)
{
    for (const FlagRow *r = flag_rows; r->command; r++)
        if (r->kind == ROW_PART && strcmp(r->name, command) == 0) return r->command;
    return command;
}
