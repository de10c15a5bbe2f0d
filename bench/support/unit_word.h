/* unit_word.h -- "unit=tiles": products of bf16 by a unit of one's choice, as an argument of a program. */
#ifndef BENCH_SUPPORT_UNIT_WORD_H
#define BENCH_SUPPORT_UNIT_WORD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/units.h"

/* Whether it is such a word; the unit is then in use. One that this CPU has not ends the program. */
static inline bool unit_word(const char *word)
{
    static const struct {
        const char *word;
        CpuUnit unit;
    } row[] = {{"unit=fma", UNIT_FMA}, {"unit=dot", UNIT_DOT}, {"unit=tiles", UNIT_TILES}};
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, row[i].word) != 0) continue;
        units_open();
        if (!units_have(row[i].unit)) {
            fprintf(stderr, "%s: this CPU has no %s\n", word, units_text(row[i].unit));
            exit(2);
        }
        units_use(row[i].unit);
        return true;
    }
    return false;
}

#endif
