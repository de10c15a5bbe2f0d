/* transfer.h -- instructions of programs that reach other ranks, and the packing around them. */
#ifndef RUN_TRANSFER_H
#define RUN_TRANSFER_H

#include "run/rank.h"

/* One instruction at work. */
typedef struct {
    Rank *rank;
    const Program *program;
    const Instr *instr;
    const Call *call; /* its operands, found */
    int32_t tag;      /* the same on all members */
} Transferring;

/* Collective over the group of the instruction. Sends full extents, live or not, so that what is
 * sent is known before the run. */
Err transfer_begin(const Transferring *t, Ticket *out);
/* Local. Copies the boxes of a pack. */
Err transfer_pack(const Transferring *t);

#endif
