/* verified.h -- settings of verify for small models, and checks that all grades of a layout are ok.
 *
 *     VerifySettings s = verified_f64(test_model("llama"), 2, 9);     change what the test is about
 *     expect_verified_words(&s, "cp=2 dp=2 zero=3");
 */
#ifndef SUPPORT_VERIFIED_H
#define SUPPORT_VERIFIED_H

#include "verify/verify.h"

/* Two steps of AdamW with decay and clipping, on micro-batches of `micro` sequences of `tokens`.
 * _f64 has grade f64 alone, on ref; _cpu has all grades, on cpu in that type. */
VerifySettings verified_f64(const ModelConfig *config, int64_t micro, int64_t tokens);
VerifySettings verified_cpu(const ModelConfig *config, DType dtype, int64_t micro, int64_t tokens);

/* Local: ranks are threads. Fails the test with the layout and all deviations of the first line
 * that is not ok; returns the number of lines. */
int expect_verified(const VerifySettings *s, const ParallelSettings *layout, Arena *arena,
                    VerifyLine *line);

/* The same for a layout in words; the arena is its own. Fails if the ranks send nothing, or other
 * bytes than predicted. */
void expect_verified_words(const VerifySettings *s, const char *words);

#endif
