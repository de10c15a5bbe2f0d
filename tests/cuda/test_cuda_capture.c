/* Training steps captured as CUDA graphs: one rank, in f32 and bf16, with AdamW and SGD, with
 * copies to the host and back. Losses, norms, weights and moments equal those of steps launched op
 * by op, to the bit, with changing rates, changing live rows, a skipped step, validations between
 * steps and a state that is read between them. A capture that fails has no effect. */
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include "device/registry.h"
#include "support/captures.h"
#include "support/device_rows.h"

enum { SKIPPED = 77, ALONE = 4 };

static const Device *cuda;
static int launched; /* graphs, on the GPU */

static CapturePlan plan_of(int row, ModelConfig *config)
{
    const World w = device_world(&device_rows[row], cuda, config);
    return (CapturePlan){.set = w.set, .device = cuda, .reads = 5};
}

static void expect_same(const char *name, CapturePlan p, int captures, int launches)
{
    CaptureResult want, got;
    if (captures_run(&p, &want) != OK) fail_msg("%s: %s", name, err_text());
    p.capture = true;
    if (captures_run(&p, &got) != OK) fail_msg("%s, captured: %s", name, err_text());
    if (got.refused[0]) fail_msg("%s: the capture is refused: %s", name, got.refused);
    captures_same(name, &want, &got);
    if (got.captured != captures || got.launched != launches)
        fail_msg("%s: %d captured, %d launched; should be %d, %d", name, (int)got.captured,
                 (int)got.launched, captures, launches);
    launched += (int)got.launched;
    captures_close(&want);
    captures_close(&got);
}

static void every_kind(void **state)
{
    (void)state;
    for (int row = 0; row < ALONE; row++) {
        ModelConfig config;
        const CapturePlan p = plan_of(row, &config);
        expect_same(device_rows[row].name, p, 1, CAPTURE_STEPS - 1);
    }
}

static void every_change(void **state)
{
    (void)state;
    for (int row = 0; row < 2; row++) {
        ModelConfig config;
        CapturePlan p = plan_of(row, &config);
        p.short_from = 4;
        expect_same("rows that change", p, 2, 6);
        p.short_from = 0;
        p.bad = 6;
        expect_same("a step that is skipped", p, 1, CAPTURE_STEPS - 1);
        p.bad = 0;
        p.validates = true;
        expect_same("validations between steps", p, 2, 2 * (CAPTURE_STEPS - 1));
    }
}

/* The table of CUDA with a gemm that waits for the queue, which no capture may do. */
static Device waiting;

static Err waiting_gemm(const Call *call)
{
    TRY(cuda->runtime->sync(call->queue));
    return cuda->kernel[KERNEL_gemm](call);
}

static void refused(void **state)
{
    (void)state;
    for (int row = 0; row < ALONE; row++) {
        ModelConfig config;
        CaptureResult want, got;
        CapturePlan p = plan_of(row, &config);
        DO(captures_run(&p, &want));
        waiting = *cuda;
        waiting.kernel[KERNEL_gemm] = waiting_gemm;
        p.device = &waiting;
        p.capture = true;
        DO(captures_run(&p, &got));
        captures_same("refused", &want, &got);
        assert_int_equal(got.captured + got.launched, 0);
        assert_true(got.refused[0] != '\0');
        if (row == 0) printf("refused: %s\n", got.refused);
        captures_close(&want);
        captures_close(&got);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind), cmocka_unit_test(every_change),
                                       cmocka_unit_test(refused)};
    device_cuda_search(getenv("PATH"));
    if (device_open("cuda", argc > 1 ? argv[1] : NULL, &cuda) != OK) {
        printf("SKIPPED: graphs on a GPU: %s\n", err_text());
        return SKIPPED;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d graphs launched on the GPU\n", launched);
    return failed || launched == 0;
}
