/* terapipe.c -- TeraPipe: GPipe over slices of micro-batches.
 *
 *   stage 0 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *   stage 1 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *   stage 2 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0.0 F0.1 F0.2 .    .    .    .    .    .    B0.2 --   B0.1 --   B0.0 --
 *   stage 1 | .    F0.0 F0.1 F0.2 .    .    .    B0.2 --   B0.1 --   B0.0 --   .    .
 *   stage 2 | .    .    F0.0 F0.1 F0.2 B0.2 --   B0.1 --   B0.0 --   .    .    .    .
 *
 * One long sequence fills the pipeline by itself. The lengths of its slices are planned (slices.h):
 * too few slices lengthen the ramp, too many add the fixed cost of a slice. As in GPipe, every
 * stage holds all activations. */
#include "schedule/gen/generate.h"

int gen_terapipe(const Pipeline *p, int stage, Action *out) { return gen_gpipe(p, stage, out); }
