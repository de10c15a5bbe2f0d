/* watch.h -- where a rank is, told to whoever looks on: a cell that outlives the rank, and a list of what it did.
 *
 *     rank 2      ... F3.1 ............................. B3.1 ...
 *     its cell    run layer.3 F micro 1 instruction 17   ...          one store each, in memory that may be shared
 *     its events  (layer.3 F 1, instruction 17, linear, 1.2034 s to 1.2071 s) ...
 *
 * A cell is written by its rank alone and read by others at any time; another process reads it after a crash. Events are
 * written to room that was there before the step; what does not fit is counted. */
#ifndef RUN_WATCH_H
#define RUN_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

enum { WATCH_NAME_BYTES = 24 };

typedef struct {
    _Atomic int64_t step;                 /* that it is in; 0: none */
    _Atomic int32_t action, phase, micro; /* of ActionKind; -1: between actions */
    _Atomic int32_t instr, op;            /* of the unit's program; -1: none */
    _Atomic char unit[WATCH_NAME_BYTES];  /* "layer.3"; "" where the action has none */
} RankWatch;

/* What an event is, where it is no instruction: the action as a whole, or weights that are arranged before a
 * RUN. */
enum { TRACE_ACTION = -1, TRACE_PREPACK = -2 };

typedef struct {
    double begin_s, end_s; /* of the monotonic clock */
    int32_t instr, op;     /* op: -1 where it is no instruction */
    int16_t unit, micro;
    uint8_t action, phase;
} TraceEvent;

typedef struct {
    TraceEvent *at;
    int64_t n, cap, missed;
} RankTrace;

#endif
