/* phase.h -- the phases of a unit's program, and the lifetimes of its tensors. */
#ifndef IR_PHASE_H
#define IR_PHASE_H

#include "device/runtime.h"

/* F: nodes that do not depend on the gradient of the output. I: gradients of inputs. W: the rest,
 * gradients of parameters. B is I and W in one order. */
typedef enum { PHASE_F, PHASE_I, PHASE_W, PHASE_B, N_PHASES } Phase;

/* The end of a tensor's lifetime: its phase, its last reader, its micro-batch, the step, the
 * session, never. */
typedef enum {
    SCOPE_SCRATCH,
    SCOPE_FRAME,
    SCOPE_MICRO,
    SCOPE_STEP,
    SCOPE_SESSION,
    SCOPE_STATE,
    N_SCOPES
} Scope;

static inline const char *phase_name(Phase p)
{
    static const char *const name[N_PHASES] = {"F", "I", "W", "B"};
    return name[p];
}

static inline const char *scope_name(Scope s)
{
    static const char *const name[N_SCOPES] = {"scratch", "frame",   "micro",
                                               "step",    "session", "state"};
    return name[s];
}

static inline const char *queue_name(Queue q)
{
    static const char *const name[N_QUEUES] = {"compute", "comm", "d2h", "h2d", "host"};
    return name[q];
}

#endif
