/* test_metrics.c -- learning rates, metrics.jsonl, the step line, and event files, which the test
 * decodes itself. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/lr.h"
#include "train/metrics.h"

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-12 * fmax(1, fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

static void rates(void **state)
{
    (void)state;
    LrSettings s = {DECAY_COSINE, 1.0, 0.1, 10, 110};
    assert_near(lr_at(&s, 1), 0.1);
    assert_near(lr_at(&s, 9), 0.9);
    assert_near(lr_at(&s, 10), 1.0);
    assert_near(lr_at(&s, 60), 0.55); /* the middle of the decay */
    assert_near(lr_at(&s, 35), 0.1 + 0.9 * (0.5 + 0.5 * sqrt(0.5)));
    assert_near(lr_at(&s, 110), 0.1);
    s.decay = DECAY_LINEAR;
    assert_near(lr_at(&s, 35), 0.1 + 0.9 * 0.75);
    assert_near(lr_at(&s, 110), 0.1);
    s.decay = DECAY_CONSTANT;
    assert_near(lr_at(&s, 5), 0.5);
    assert_near(lr_at(&s, 110), 1.0);
    s.decay = DECAY_WSD; /* falls over the last fifth: from step 88 */
    assert_near(lr_at(&s, 88), 1.0);
    assert_near(lr_at(&s, 110), 0.1);
    assert_true(lr_at(&s, 99) < 1.0 && lr_at(&s, 99) > 0.1);
    s = (LrSettings){DECAY_COSINE, 2.0, 0, 0, 1}; /* a run of one step */
    assert_near(lr_at(&s, 1), 2.0);
    s.steps = 5;
    assert_near(lr_at(&s, 1), 2.0);
    assert_near(lr_at(&s, 5), 0.0);
}

static const Metrics example = {.step = 120,
                                .steps = 1000,
                                .loss = 3.25,
                                .grad_norm = 0.8125,
                                .lr = 3e-4,
                                .tokens = 983040,
                                .step_ms = 412,
                                .tokens_per_s = 19900,
                                .mfu = 0.471,
                                .peak_bytes = 5583457485,
                                .sent_bytes = 0,
                                .has_valid = true,
                                .valid_loss = 3.5};

static const double *load_of(const void *load, int layer)
{
    return (const double *)load + 3 * layer;
}

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    assert_non_null(f);
    *n = fread(text, 1, (1 << 16) - 1, f);
    fclose(f);
    return text;
}

/* The number that follows a tag in a Summary: field 2, a float. */
static float value_of(const char *bytes, size_t n, const char *tag)
{
    float x = NAN;
    const char *at = memmem(bytes, n, tag, strlen(tag));
    assert_non_null(at);
    at += strlen(tag);
    assert_int_equal(*at, 0x15);
    memcpy(&x, at + 1, sizeof x);
    return x;
}

/* CRC-32C bit by bit from its definition, independent of the code under test. */
static uint32_t slow_crc32c(const unsigned char *p, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < 8 * n; i++) {
        const uint32_t bit = (crc ^ (uint32_t)(p[i / 8] >> i % 8)) & 1;
        crc = crc >> 1 ^ bit * 0x82F63B78u;
    }
    return ~crc;
}

static size_t check_record(const char *bytes, size_t at, size_t n)
{
    uint64_t length;
    uint32_t crc;
    assert_true(at + 12 <= n);
    memcpy(&length, bytes + at, 8);
    memcpy(&crc, bytes + at + 8, 4);
    const uint32_t want = slow_crc32c((const unsigned char *)bytes + at, 8);
    assert_int_equal(crc, (want >> 15 | want << 17) + 0xA282EAD8u);
    assert_true(at + 16 + length <= n);
    memcpy(&crc, bytes + at + 12 + length, 4);
    const uint32_t body = slow_crc32c((const unsigned char *)bytes + at + 12, length);
    assert_int_equal(crc, (body >> 15 | body << 17) + 0xA282EAD8u);
    return at + 16 + length;
}

static void check_events(const char *dir)
{
    DIR *d = opendir(dir);
    char path[512] = "";
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    closedir(d);
    size_t n, at = 0;
    int records = 0;
    char *bytes = read_all(path, &n);
    for (; at < n; records++) at = check_record(bytes, at, n);
    assert_int_equal(records, 3); /* the header and two steps */
    assert_non_null(memmem(bytes, n, "brain.Event:2", 13));
    assert_true(value_of(bytes, n, "loss") == 3.25f);
    assert_true(value_of(bytes, n, "valid_loss") == 3.5f);
    assert_true(value_of(bytes, n, "load_max") == 2.0f);
    unlink(path);
    free(bytes);
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/sheaf-metrics-XXXXXX", path[512];
    MetricsSinks f;
    Metrics second = example;
    size_t n;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(metrics_open(&f, &(MetricsSettings){dir, true, 0}), OK);
    assert_int_equal(metrics_write(&f, &example), OK);
    second.step++;
    second.loss = (double)NAN;
    second.has_valid = false;
    static const double load[] = {4, 0, 2, 1, 2, 3};
    second.router = (RouterMetrics){.layers = 2,
                                    .aux = 1.25,
                                    .z = 0.5,
                                    .max = 2,
                                    .load = load_of,
                                    .context = load,
                                    .experts = 3};
    assert_int_equal(metrics_write(&f, &second), OK);
    assert_int_equal(metrics_close(&f), OK);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    char *text = read_all(path, &n), *line2 = strchr(text, '\n') + 1;
    json_t *one = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL), *two = json_loads(line2, 0, NULL);
    static const char *const keys[] = {"step",       "loss",      "grad_norm",    "lr",
                                       "tokens",     "step_ms",   "tokens_per_s", "mfu",
                                       "peak_bytes", "sent_bytes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_non_null(json_object_get(one, keys[i]));
        assert_non_null(json_object_get(two, keys[i]));
    }
    assert_near(json_real_value(json_object_get(one, "loss")), 3.25);
    assert_int_equal(json_integer_value(json_object_get(one, "peak_bytes")), example.peak_bytes);
    assert_true(json_is_null(json_object_get(two, "loss")));
    assert_null(json_object_get(two, "valid_loss"));
    assert_null(json_object_get(two, "predicted_ms")); /* no plan yet */
    assert_null(json_object_get(one, "aux_loss"));
    assert_true(json_number_value(json_object_get(two, "aux_loss")) == 1.25);
    assert_true(json_number_value(json_object_get(two, "load_max")) == 2);
    const json_t *loads = json_object_get(two, "expert_load");
    assert_int_equal(json_array_size(loads), 2);
    for (size_t i = 0; i < 6; i++)
        assert_true(json_number_value(json_array_get(json_array_get(loads, i / 3), i % 3)) ==
                    load[i]);
    json_decref(one);
    json_decref(two);
    free(text);
    check_events(dir);
    unlink(path);
    rmdir(dir);
    assert_int_equal(metrics_open(&f, &(MetricsSettings){.dir = "/no/such/folder"}), ERR_IO);
    assert_non_null(strstr(err_text(), "/no/such/folder/metrics.jsonl"));
}

static void line(void **state)
{
    (void)state;
    char buffer[512] = "";
    FILE *f = fmemopen(buffer, sizeof buffer, "w");
    metrics_line(f, false, &example, 361);
    fclose(f);
    assert_string_equal(
        buffer,
        "step 120/1000  loss 3.2500  gnorm 0.81  lr 3.0e-04  412 ms  19.9k tok/s  mfu 47.1% of "
        "measured GEMM peak  mem 5.2 GiB  valid 3.5000  eta 6m01\n");
    Metrics planned = example;
    planned.predicted_ms = 404.6;
    f = fmemopen(buffer, sizeof buffer, "w");
    metrics_line(f, false, &planned, 361);
    fclose(f);
    assert_non_null(strstr(buffer, "lr 3.0e-04  412 ms (plan 405)  19.9k tok/s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates), cmocka_unit_test(files),
                                       cmocka_unit_test(line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
