/* gen_gpipe.c -- GPipe: all forwards, then all backwards.
 */
#include "schedule/generate.h"

int gen_gpipe(const Schedule *shape, int rank, Action *out)
{
    int n = 0;
    for (int micro = 0; micro < shape->micros; micro++)
        for (int slice = 0; slice < shape->slices; slice++)
            out[n++] = action_run(PHASE_F, rank, micro, slice);
    /* Oldest first, though any order would do: gradients add up as on one rank. */
    for (int micro = 0; micro < shape->micros; micro++)
        for (int slice = shape->slices - 1; slice >= 0; slice--)
            out[n++] = action_run(PHASE_B, rank, micro, slice);
    return n;
}
