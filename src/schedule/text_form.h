/* text_form.h -- the text form of a schedule: printed by `explain`, or written by hand.
 *
 *     sheaf schedule 2           the version of the form
 *     chunks 2 micros 2 slices 1
 *     stages 0 1                 the stage of each chunk
 *     units 3 2                  units in each chunk; left out: one each
 *     packs 1 2 2 1              packs of each unit, if over units; left out: one each
 *     over chunks                or: over units
 *     stage 0: F0.0 F0.1 B0.0    RUNs: phase, chunk (or unit), micro-batch
 *     stage 0: B0.1              a list may continue on another line
 *     stage 1: F1.0 B1.0 F1.1 B1.1
 *
 *     F0.1 I0.1 W0.1 B0.1        a slice is the third number, if slices > 1: F0.1.2
 *     send.F0.1>1  recv.F0.1<0   the value that F0.1 makes, to stage 1, from stage 0 (or I, or B)
 *     gather.3  drop.3           the parameters of pack 3
 *     reduce.3  reduce.3.1       the gradients of the step; those up to micro-batch 1
 *     norm  update.3
 *     evict.0.1>3  fetch.0.1<3   the frame of unit 0, micro-batch 1; to stage 3, or to `host`
 *     bind.0                     the slot
 *
 * # starts a comment. The number of stages is the largest that the line `stages` or a list names,
 * plus one. A parsed schedule is equal to the printed one; schedule_check decides whether it can be
 * executed. Version 1 of the form has the words `rank` and `place` for `stage` and `stages`; the
 * parser reads both versions. */
#ifndef SCHEDULE_TEXT_FORM_H
#define SCHEDULE_TEXT_FORM_H

#include "schedule/action.h"

enum { SCHEDULE_VERSION = 2, ACTION_TEXT_BYTES = 48 };
/* Local. Prints the action as in a list into `buffer` of ACTION_TEXT_BYTES, and returns
 * `buffer`. */
const char *action_text(const Action *a, int slices, char *buffer);
/* Local. Prints the whole schedule, in lines of at most 100 columns. */
Err schedule_print(const Schedule *s, Arena *arena, const char **out);
/* Local. ERR_CONFIG names file, line, column, the word and the words allowed there. `name` is the
 * file's name in messages. The text need not end in a NUL. */
Err schedule_parse(const char *name, const char *text, size_t length, Arena *arena, Schedule *out);

#endif
