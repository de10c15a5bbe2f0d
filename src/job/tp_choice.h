/* tp_choice.h -- layouts of weights along tp for a job, found by the search of its units
 * (compile/tp_search.h).
 *
 *     kind     Megatron     found
 *     embed    0.926 ms     0.741 ms     embed_tokens along inputs
 *     layer    7.940 ms     6.876 ms     all whole
 *
 * The rules are text, as in a run file: what was found is used like rules that a person writes. */
#ifndef JOB_TP_CHOICE_H
#define JOB_TP_CHOICE_H

#include "job/job.h"

typedef struct {
    const char *kind;
    double seconds, megatron_s; /* of a sequence in one unit, with its share of a step */
    bool exact;
} TpChoiceKind;

struct TpChoice {
    const char *rules; /* of weights that are not as in Megatron; NULL: all are */
    const char *rates; /* the cluster whose rates decided; NULL: the default ones */
    double elements;   /* of weights on a rank, of all units */
    int n_kinds;
    TpChoiceKind kind[MAX_KINDS];
};

/* Local. Searches the units of a job on a mesh with tp > 1. byte_s: what a byte of state on a rank
 * is worth, in seconds of a step. The same on all ranks. `temp` is rewound. */
Err job_choose_tp(const JobSettings *s, double byte_s, Arena *arena, Arena *temp, TpChoice *out);

#endif
