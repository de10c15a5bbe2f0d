/* parse.h -- interface between parse.c, which reads lines, and parse_action.c, which reads a
 * word. */
#ifndef SCHEDULE_PARSE_H
#define SCHEDULE_PARSE_H

#include "schedule/action.h"

enum { MAX_PARSE_WORD = 40, PARSE_REASON_BYTES = 256 };

/* Local. Returns the number of leading digits and their value, capped at MAX_SCHEDULE + 1. */
int schedule_digits(const char *at, const char *end, int *value);
/* Local. False, with the reason, if the word is not an action of this schedule. */
bool action_parse(const Schedule *s, const char *word, int length, Action *out, char *reason);

#endif
