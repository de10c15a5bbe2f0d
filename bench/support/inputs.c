/* inputs.c -- tokens and targets from a linear congruential generator; positions, ranges,
 * weights. */
#include "support/inputs.h"

static void fill_micro(Rank *r, int micro, int64_t rows, int64_t seq_len, int64_t vocab)
{
    uint64_t seed = 1 + (uint64_t)micro;
    for (int32_t i = 0; i < rows; i++) {
        const int32_t first = i - i % (int32_t)seq_len;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const InputRow row = {.token = (int32_t)((seed >> 33) % (uint64_t)vocab),
                              .target = (int32_t)((seed >> 20) % (uint64_t)vocab),
                              .position = i - first,
                              .range = {first, i + 1, 0, 0},
                              .weight = 1};
        rank_put_row(r, micro, i, &row);
    }
}

void inputs_fill(Rank *r, int64_t sequences, int64_t seq_len, int64_t vocab)
{
    for (int m = 0; m < r->settings.program->micros; m++)
        fill_micro(r, m, sequences * seq_len, seq_len, vocab);
}
