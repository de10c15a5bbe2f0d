/* verify.h -- between `sheaf verify` and how it says what it found. */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

#include "base/err.h"
#include "verify/verify.h"

typedef struct {
    ModelConfig model, tried; /* tried: shrunken, or the same */
    bool shrunken;
    const Device *device;
    VerifySettings set;
    ParallelSettings *layout;
    int n_layouts;
    VerifyLine *line;
    int n_lines, failed;
} Verification;

/* Local. As text: what is tried, the lines of a layout, the verdict. */
void verify_print_head(const Verification *v);
void verify_print_lines(const VerifyLine *line, int n);
void verify_print_summary(const Verification *v);
/* Local. All of it as one JSON object. */
Err verify_json(const Verification *v);

#endif
