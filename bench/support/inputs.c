/* inputs.c -- tokens and targets from a linear congruential generator; positions, ranges,
 * weights. */
#include "support/inputs.h"

#include <string.h>

static void fill_micro(Rank *r, int micro, int64_t rows, int64_t seq_len, int64_t vocab)
{
    uint64_t seed = 1 + (uint64_t)micro;
    for (int32_t i = 0; i < rows; i++) {
        const int32_t first = i - i % (int32_t)seq_len, range[4] = {first, i + 1, 0, 0};
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ((int32_t *)rank_input(r, micro, INPUT_TOKENS).data)[i] =
            (int32_t)((seed >> 33) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, micro, INPUT_TARGETS).data)[i] =
            (int32_t)((seed >> 20) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, micro, INPUT_POSITIONS).data)[i] = i - first;
        ((float *)rank_input(r, micro, INPUT_WEIGHTS).data)[i] = 1;
        memcpy((int32_t *)rank_input(r, micro, INPUT_RANGES).data + 4 * i, range, sizeof range);
    }
}

void inputs_fill(Rank *r, int64_t sequences, int64_t seq_len, int64_t vocab)
{
    for (int m = 0; m < r->settings.program->micros; m++)
        fill_micro(r, m, sequences * seq_len, seq_len, vocab);
}
