/* test_cluster.c -- cluster files: values in their units; faults are refused with file, line and
 * key; the shipped files are read. */
#define _POSIX_C_SOURCE 200809L
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/expect.h"
#include "plan/cluster.h"

static const char good[] =
    "name: two\noverlap: false\ndevice:\n  memory_gib: 2\n  peak_tflops: {bf16: 8}\n"
    "  gemm_tflops: {f64: 1, f32: 2, bf16: 3}\n  attention_tflops: {f64: 4, f32: 5, bf16: 6}\n"
    "  pointwise_tflops: {f64: 7, f32: 8, bf16: 9}\n  memory_gbps: 10\n  host_gbps: 11\n"
    "  launch_us: 0\nlinks:\n  - {ranks: 4, latency_us: 1.5, gbps: 12}\n"
    "  - {latency_us: 2, gbps: 13}\n";

static Err read_text(const char *text, Arena *arena, Cluster *out)
{
    char path[] = "/tmp/test_cluster_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    const Err err = cluster_read(path, arena, out);
    unlink(path);
    return err;
}

static void values_have_their_units(void **state)
{
    Arena arena;
    Cluster c;
    (void)state;
    DO(arena_open(&arena, "cluster", 1 << 20));
    DO(read_text(good, &arena, &c));
    assert_string_equal(c.name, "two");
    assert_false(c.overlaps);
    assert_true(c.memory_bytes == 0x1p31);
    assert_true(c.peak_flops_per_s[BF16] == 8e12 && c.peak_flops_per_s[F32] == 0);
    assert_true(c.rates.flops_per_s[WORK_GEMM][F32] == 2e12);
    assert_true(c.rates.flops_per_s[WORK_ATTENTION][F64] == 4e12);
    assert_true(c.rates.flops_per_s[WORK_POINTWISE][BF16] == 9e12);
    assert_true(c.rates.memory_Bps == 10e9 && c.rates.host_Bps == 11e9 && c.rates.launch_s == 0);
    assert_int_equal(c.rates.n_levels, 2);
    assert_int_equal(c.rates.level[0].ranks, 4);
    assert_true(c.rates.level[0].latency_s == 1.5e-6 && c.rates.level[1].Bps == 13e9);
    assert_int_equal(c.rates.level[1].ranks, 0);
    arena_close(&arena);
}

/* Replaces the first `from` of the good file. */
static void expect_refused(const char *from, const char *to, const char *message)
{
    char text[2048];
    Arena arena;
    Cluster c = {.name = "untouched"};
    const char *at = strstr(good, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    DO(arena_open(&arena, "cluster", 1 << 20));
    expect_error(to, read_text(text, &arena, &c), ERR_CONFIG, message);
    assert_string_equal(c.name, "untouched");
    arena_close(&arena);
}

static void faults_are_refused(void **state)
{
    (void)state;
    expect_refused("memory_gib: 2", "memory_gib: -2", ":4: memory_gib: \"-2\" is not a number");
    expect_refused("memory_gib: 2", "memory_gib: 0", "above 0");
    expect_refused("memory_gib: 2", "memory_gib: 2 GB", "\"2 GB\" is not a number");
    expect_refused("memory_gib: 2", "memory_gib: [2]", "memory_gib: \"a list or map\"");
    expect_refused("launch_us: 0", "launch_us: -1", "of at least 0");
    expect_refused("  host_gbps: 11\n", "", "device has no host_gbps; add it");
    expect_refused("host_gbps: 11", "host_gbps: 11\n  colour: 3", "the key \"colour\"");
    expect_refused("host_gbps: 11", "host_gbps: 11\n  host_gbps: 12", "has a key twice");
    expect_refused("f32: 2, ", "", "gemm_tflops has no f32; add it");
    expect_refused("f32: 2, ", "f32: 2, fp8: 3, ", "gemm_tflops: has a key that no cluster");
    expect_refused("f32: 2, ", "f32: 2, f32: 3, ", "f32: is there twice");
    expect_refused("overlap: false", "overlap: maybe", ":2: overlap: is neither true nor false");
    expect_refused("name: two\n", "", "the file has no name; add it");
    expect_refused("ranks: 4, ", "", "links has no ranks; add it");
    expect_refused("ranks: 4", "ranks: 4.5", "links: ranks 4.5 after 0");
    expect_refused("{latency_us: 2, gbps: 13}",
                   "{ranks: 6, latency_us: 2, gbps: 1}\n"
                   "  - {latency_us: 1, gbps: 1}",
                   "links: ranks 6 after 4");
    expect_refused("links:", "links: 3\nmore:", "the key \"more\"");
    expect_refused("name: two", "name: [two", "not YAML");
    expect_refused(good, "", "is empty");
}

/* A cluster that is written and read again is the same, up to the digits that are written. */
static void written_files_are_read(void **state)
{
    Arena arena;
    Cluster c, again;
    const char *text;
    (void)state;
    DO(arena_open(&arena, "cluster", 1 << 20));
    DO(read_text(good, &arena, &c));
    c.name = "a \"quoted\\ name\": # 2";
    c.peak_flops_per_s[F64] = c.peak_flops_per_s[F32] = 1.23456789e10;
    c.peak_flops_per_s[BF16] = 0; /* not known */
    c.rates.memory_Bps = 98765.4321e5;
    Text t = text_in(&arena);
    cluster_text(&c, &t);
    DO(text_done(&t, &text));
    DO(read_text(text, &arena, &again));
    assert_string_equal(c.name, again.name);
    assert_true(c.overlaps == again.overlaps && c.rates.n_levels == again.rates.n_levels);
    const double *x = (const double *)&c.rates, *y = (const double *)&again.rates;
    for (size_t i = 0; i < offsetof(CostRates, n_levels) / sizeof *x; i++)
        assert_true(y[i] >= x[i] * (1 - 1e-5) && y[i] <= x[i] * (1 + 1e-5));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c.rates.level[i].ranks, again.rates.level[i].ranks);
        assert_true(c.rates.level[i].Bps == again.rates.level[i].Bps);
        assert_true(c.rates.level[i].latency_s == again.rates.level[i].latency_s);
    }
    assert_true(again.peak_flops_per_s[F64] > 1.2345e10 && again.memory_bytes == c.memory_bytes);
    assert_true(again.peak_flops_per_s[BF16] == 0);
    arena_close(&arena);
}

static void shipped_files_are_read(void **state)
{
    glob_t found;
    Arena arena;
    Cluster c;
    (void)state;
    assert_int_equal(glob("share/clusters/*.yaml", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 6);
    DO(arena_open(&arena, "cluster", 1 << 20));
    for (size_t i = 0; i < found.gl_pathc; i++) {
        DO(cluster_read(found.gl_pathv[i], &arena, &c));
        assert_non_null(strstr(found.gl_pathv[i], c.name));
        for (int t = F64; t <= BF16; t++)
            assert_true(c.rates.flops_per_s[WORK_GEMM][t] < c.peak_flops_per_s[t]);
        assert_true(c.rates.level[0].Bps > c.rates.level[1].Bps);
    }
    globfree(&found);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_units), cmocka_unit_test(faults_are_refused),
        cmocka_unit_test(written_files_are_read), cmocka_unit_test(shipped_files_are_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
