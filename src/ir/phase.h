/* phase.h -- the parts of a unit's program, and how long its tensors live. */
#ifndef IR_PHASE_H
#define IR_PHASE_H

#include "device/runtime.h"

/* F: what does not need the gradient of the output. I: gradients of inputs. W: the rest, gradients
 * of parameters. B is I and W ordered together. */
typedef enum { PHASE_F, PHASE_I, PHASE_W, PHASE_B, N_PHASES } Phase;

/* Who frees a tensor: its phase, its last reader, its micro-batch, the step, the user, nobody. */
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
