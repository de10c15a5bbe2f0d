/* microkernel_option.h -- the argument "microkernel=amx": selects the micro-kernel for bf16. */
#ifndef BENCH_SUPPORT_UNIT_WORD_H
#define BENCH_SUPPORT_UNIT_WORD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/microkernels.h"

/* Returns true if the word is such an argument; the micro-kernel is then in use. Exits if this CPU
 * does not have it. */
static inline bool microkernel_option(const char *word)
{
    static const struct {
        const char *word;
        CpuMicrokernel kernel;
    } row[] = {{"microkernel=fma", MICROKERNEL_FMA},
               {"microkernel=dot", MICROKERNEL_DOT},
               {"microkernel=amx", MICROKERNEL_AMX}};
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, row[i].word) != 0) continue;
        microkernels_open();
        if (!microkernel_available(row[i].kernel)) {
            fprintf(stderr, "%s: this CPU has no %s\n", word, microkernel_text(row[i].kernel));
            exit(2);
        }
        microkernel_use(row[i].kernel);
        return true;
    }
    return false;
}

#endif
