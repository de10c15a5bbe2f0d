/* terapipe.c -- TeraPipe: GPipe over slices of micro-batches.
 *
 *   stage 0 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *   stage 1 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *   stage 2 | F0.0 F0.1 F0.2 B0.2 B0.1 B0.0
 *
 * The same by the clock, where B takes twice the time of F:
 *
 *   stage 0 | F0.0 F0.1 F0.2 .    .    .    .    .    .    B0.2 --   B0.1 --   B0.0 --
 *   stage 1 | .    F0.0 F0.1 F0.2 .    .    .    B0.2 --   B0.1 --   B0.0 --   .    .
 *   stage 2 | .    .    F0.0 F0.1 F0.2 B0.2 --   B0.1 --   B0.0 --   .    .    .    .
 *
 * One long sequence fills the pipeline by itself. The lengths of its slices are a plan of their own
 * (slices.h): fewer slices waste time on the ramp, more of them on what every slice costs. Holds
 * everything, as GPipe does. */
#include "schedule/gen/generate.h"

int gen_terapipe(const Pipeline *p, int stage, Action *out) { return gen_gpipe(p, stage, out); }
