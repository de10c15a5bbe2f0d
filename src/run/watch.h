/* watch.h -- the position of a rank, for observers, and the trace of its past events.
 *
 *     rank 2      ... F3.1 ............................. B3.1 ...
 *     position    run layer.3 F micro 1 instruction 17   ...
 *     trace       (layer.3 F 1, instruction 17, linear, 1.2034 s to 1.2071 s) ...
 *
 * The position is written by its rank alone, one store per member, in memory that may be shared and
 * may outlive the rank. Others read it at any time; the flight recorder of another process reads it
 * after a crash. Events go into memory allocated before the step; those that do not fit are
 * counted. */
#ifndef RUN_WATCH_H
#define RUN_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

enum { WATCH_NAME_BYTES = 24, WATCH_GRAPH = -2 };

typedef struct {
    _Atomic int64_t step; /* current step; 0: between steps */
    /* action: an ActionKind; -1: between actions; WATCH_GRAPH: the step runs as a graph */
    _Atomic int32_t action, phase, micro;
    _Atomic int32_t instr, op;           /* in the unit's program; -1: none */
    _Atomic char unit[WATCH_NAME_BYTES]; /* "layer.3"; "" if the action has no unit */
} RankWatch;

/* TraceEvent.instr of events that are no instructions: a whole action; prepacking before a RUN. */
enum { TRACE_ACTION = -1, TRACE_PREPACK = -2 };

typedef struct {
    double begin_s, end_s; /* monotonic clock */
    int32_t instr, op;     /* op: -1 if it is no instruction */
    int16_t unit, micro;
    uint8_t action, phase;
} TraceEvent;

typedef struct {
    TraceEvent *at;
    int64_t n, cap, missed;
} RankTrace;

#endif
