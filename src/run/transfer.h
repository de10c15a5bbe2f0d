/* transfer.h -- instructions of programs that move data between ranks, and the packing around
 * them. */
#ifndef RUN_TRANSFER_H
#define RUN_TRANSFER_H

#include "run/rank.h"

/* One transfer or pack instruction, with its operands. */
typedef struct {
    Rank *rank;
    const Program *program;
    const Instr *instr;
    const Call *call; /* the resolved operands */
    int64_t tag;      /* equal on all members of the group */
} TransferInstr;

/* Local. The transfer that the instruction begins. It moves full extents, whatever rows are live,
 * so that the bytes sent are known before the run. ERR_CHECK if the rank has no comm. */
Err transfer_describe(const TransferInstr *t, Transfer *out);
/* Local. Copies the boxes of a pack. */
Err transfer_pack(const TransferInstr *t);

#endif
