/* verify.h -- a verification and its report. */
#ifndef CLI_VERIFY_VERIFY_H
#define CLI_VERIFY_VERIFY_H

#include "base/err.h"
#include "cli/launch.h"
#include "verify/verify.h"

typedef struct {
    Launch launch;
    ModelConfig model;
    ModelConfig trial_model; /* a shrunken copy of the model, or the model itself */
    bool shrunken;
    const Device *device;
    StageRecompute stage[MAX_STAGE_RULES];
    const char *tp_weights;   /* of the layout of the run */
    const UnitOptions *units; /* of the trial model, by the run's rules for layers; NULL: none */
    TransportSettings transport;
    VerifySettings set; /* points to `stage` and `tried` */
    ParallelSettings *layout;
    int n_layouts;
    int left_out;     /* layouts of the covering set with another number of ranks than processes */
    int own_left_out; /* ranks of the run's layout, if it is not compared; 0: it is */
    VerifyLine *line;
    int n_lines, failed;
} Verification;

/* Local. As text: the settings, the comparisons of one layout, the result. */
void verify_print_head(const Verification *v);
void verify_print_lines(const VerifyLine *line, int n);
void verify_print_summary(const Verification *v);
/* Local. The whole report as one JSON object. */
Err verify_json(const Verification *v);

#endif
