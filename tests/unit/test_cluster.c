/* test_cluster.c -- cluster files: values in their units; faults are refused with file, line and
 * key; the shipped files are read. */
#define _POSIX_C_SOURCE 200809L
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/expect.h"
#include "plan/cluster/cluster.h"

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

static const char full[] =
    "name: full\noverlap: true\nshare_links: true\nslowdown: {work: 1.1, transfer: 1.25}\ndevice:\n"
    "  memory_gib: 2\n  host_memory: true\n  peak_tflops: {f64: 1, f32: 2, bf16: 8}\n"
    "  gemm_tflops: {f64: 1, f32: 2, bf16: 3}\n  attention_tflops: {f64: 4, f32: 5, bf16: 6}\n"
    "  pointwise_tflops: {f64: 7, f32: 8, bf16: 9}\n  memory_gbps: 10\n  host_gbps: 11\n"
    "  launch_us: 1\n  host_launch_us: 7\n  host_member_us: 3\n  pair_bytes: 12\n"
    "  logit_bytes: 24\n  tiles: {units: 108, m: 256, n: 128, fill_k: 32, boost: 1.25}\n"
    "  price_per_hour: 2.5\n  power_w: {idle: 70, busy: 400}\n"
    "  gemm_table:\n    bf16: {m: [64, 128], n: [256], k: [8, 16, 32], tflops: [1, 2, 3, 4, 5, "
    "6]}\n"
    "  attention_table: {f32: {flops: [10, 100], tflops: [1, 2]}}\n"
    "  attention_by_keys:\n    bf16:\n"
    "      - {width: 64, keys: [8, 9], tflops: [3, 4], back_tflops: [1, 2]}\n"
    "      - {width: 128, keys: [8], tflops: [7], back_tflops: [6]}\n"
    "  memory_reach: {norm: 0.5, loss: 0.75, state: 1}\n  epilogue: 0.625\n"
    "  memory_table: {bytes: [1000, 2000, 4000], gbps: [5, 6, 7]}\nlinks:\n"
    "  - {level: node, ranks: 4, latency_us: 1.5, gbps: 12, pair_latency_us: 3, pair_gbps: 9}\n"
    "  - {level: world, latency_us: 2, gbps: 13, shared_by: 2}\ncollectives:\n"
    "  - {kind: all-gather, members: 8, level: world, inside: 4, bytes: [1, 10], us: [20, 30]}\n"
    "pairs: {ranks: 3, latency_us: [3, 4, 5], gbps: [8, 9, 7]}\n"
    "node_links:\n  - {nodes: [4, 0], latency_us: 3, gbps: 1}\n"
    "  - {islands: [[0], [1, 3]], latency_us: 4, gbps: 2}\n"
    "node_devices:\n  - {nodes: [5, 2], speed: 0.25, memory_gib: 1.5}\n"
    "  - {nodes: [0], speed: 0.5}\n";

static void check_full(const Cluster *c)
{
    const CostRates *r = &c->rates;
    assert_true(c->slow_work == 1.1 && c->slow_transfer == 1.25 && c->price_per_hour == 2.5);
    assert_true(c->idle_watt == 70 && c->busy_watt == 400 && c->host_memory);
    assert_true(fabs(c->host_launch_s - 7e-6) < 1e-12 && fabs(c->host_member_s - 3e-6) < 1e-12);
    assert_true(r->pair_bytes == 12 && r->logit_bytes == 24 && r->tiles.units == 108);
    assert_true(r->tiles.m == 256 && r->tiles.n == 128 && r->tiles.fill_k == 32);
    assert_true(r->tiles.boost == 1.25);
    assert_true(r->gemm[BF16] && !r->gemm[F32] && r->attention[F32] && !r->attention[BF16]);
    assert_true(r->gemm[BF16]->n_m == 2 && r->gemm[BF16]->n_n == 1 && r->gemm[BF16]->n_k == 3);
    assert_true(r->gemm[BF16]->rate[4] == 5e12 && r->gemm[BF16]->k[2] == 32);
    assert_true(r->attention[F32]->n == 2 && r->attention[F32]->y[1] == 2e12);
    assert_true(r->keyed[BF16] && !r->keyed[F32] && r->keyed[BF16]->n == 2);
    assert_true(r->keyed[BF16]->width[1] == 128 && r->keyed[BF16]->backward[0].y[1] == 2e12);
    assert_true(r->reach[REACH_NORM] == 0.5 && r->reach[REACH_LOSS] == 0.75);
    assert_true(r->reach[REACH_STATE] == 1 && r->epilogue == 0.625);
    assert_true(r->pairs && r->pairs->n == 3 && fabs((double)r->pairs->Bps[2] - 7e9) < 1e3);
    assert_true(fabs((double)r->pairs->latency_s[1] - 4e-6) < 1e-12);
    assert_true(r->memory->n == 3 && r->memory->x[2] == 4000 && r->memory->y[0] == 5e9);
    assert_true(r->level[0].shared_by == 1 && r->level[1].shared_by == 2);
    assert_true(r->level[0].pair_Bps == 9e9 && r->level[1].pair_Bps == 0);
    assert_string_equal(r->level[1].name, "world");
    assert_int_equal(r->n_tables, 1);
    assert_true(r->table->kind == COMM_ALL_GATHER && r->table->members == 8);
    assert_true(r->table->level == 1 && r->table->inside == 4 && r->table->seconds.n == 2);
    assert_true(r->table->seconds.x[1] == 10 && fabs(r->table->seconds.y[1] - 30e-6) < 1e-12);
}

/* gbps of the link between two nodes; 0: that of their level. */
static double node_gbps(const CostNodes *n, int a, int b)
{
    const int link = n->between[a * n->n + b];
    assert_int_equal(link, n->between[b * n->n + a]);
    return link ? 1e-9 * n->link[link - 1].Bps : 0;
}

static bool has_device(const CostNodes *n, int node, double speed, double gib)
{
    return n->device[node].speed == speed && n->device[node].memory_bytes == gib * 0x1p30;
}

static void check_nodes(const CostNodes *n)
{
    assert_int_equal(n->n_devices, 6);
    assert_true(has_device(n, 0, 0.5, 0) && has_device(n, 1, 1, 0) && has_device(n, 4, 1, 0));
    assert_true(has_device(n, 2, 0.25, 1.5) && has_device(n, 5, 0.25, 1.5));
    assert_int_equal(n->n, 5);
    assert_true(node_gbps(n, 0, 4) == 1 && node_gbps(n, 0, 1) == 2 && node_gbps(n, 3, 0) == 2);
    assert_true(node_gbps(n, 1, 3) == 0 && node_gbps(n, 0, 2) == 0 && node_gbps(n, 4, 1) == 0);
}

/* Every key that may be absent, read, written and read again. */
static void optional_keys_are_read_and_written(void **state)
{
    Arena arena;
    Cluster c, again;
    const char *text;
    (void)state;
    DO(arena_open(&arena, "cluster", 1 << 22));
    DO(read_text(full, &arena, &c));
    check_full(&c);
    check_nodes(c.rates.nodes);
    Text t = text_in(&arena);
    cluster_text(&c, &t);
    DO(text_done(&t, &text));
    DO(read_text(text, &arena, &again));
    check_full(&again);
    check_nodes(again.rates.nodes);
    arena_close(&arena);
}

static void expect_refused_in(const char *whole, const char *from, const char *to,
                              const char *message);

static void faults_of_optional_keys_are_refused(void **state)
{
    static const char *const fault[][3] = {
        {"work: 1.1", "work: 0.9", "slowdown: factors are at least 1"},
        {"units: 108", "units: 1.5", "units: 1.5 is not a whole number"},
        {"busy: 400", "busy: 40", "power_w: busy is below idle"},
        {"[64, 128]", "[128, 64]", "m: is not above the number before it"},
        {"5, 6]}", "5]}", "tflops has 5 numbers, not 2 x 1 x 3"},
        {"n: [256]", "n: 256", "n: is not a list of numbers"},
        {"n: [256]", "n: []", "n: 0 numbers; a list has 1 to 16"},
        {"[5, 6, 7]", "[5, 6]", "memory_table: 3 numbers of bytes, 2 of gbps"},
        {"kind: all-gather", "kind: gather", "kind: \"gather\" is none of all-reduce"},
        {"members: 8", "members: 1", "collectives: members is a whole number above 1"},
        {"level: world, inside", "level: rack, inside", "level: is the name of no level"},
        {"shared_by: 2", "shared_by: 0.5", "shared_by: 0.5 is not a whole number"},
        {"pair_gbps: 9", "pair_gbps: 9, colour: 1", "the key \"colour\""},
        {"pair_bytes: 12", "pair_bytes: -1", "of at least 0"},
        {"pairs: {ranks: 3", "pairs: {ranks: 4", "latency_us has 3 numbers, not one for each of 6"},
        {"pairs: {ranks: 3", "pairs: {ranks: 1", "pairs: 1 ranks; a matrix has 2 to 256"},
        {"{width: 128,", "{width: 64,", "width: is not above the one before it"},
        {"back_tflops: [6]", "back_tflops: [6, 7]", "1 numbers of keys, 2 of back_tflops"},
        {"loss: 0.75", "loss: 1.75", "memory_reach: parts of a rate are at most 1"},
        {"nodes: [4, 0]", "nodes: [4, 4]", "node 4 has no link to itself"},
        {"nodes: [4, 0]", "nodes: [4]", "nodes: a link has two nodes"},
        {"nodes: [4, 0]", "nodes: [4, 0.5]", "node_links: 0.5 is no node"},
        {"nodes: [4, 0]", "nodes: [4, 256]", "node_links: 256 is no node; nodes are 0 to 255"},
        {"nodes: [4, 0]", "nodes: [1, 0]", "the link of nodes 0 and 1 is there twice"},
        {"nodes: [4, 0], ", "", "an entry has nodes: [0, 1] or islands"},
        {"islands: [[0], [1, 3]]", "islands: [[0]]", "a link is between two or more islands"},
        {"islands: [[0], [1, 3]]", "islands: []", "a link is between two or more islands"},
        {"[[0], [1, 3]]", "[[0], [1, 0]]", "node 0 has no link to itself"},
        {"[[0], [1, 3]]", "[0, 1]", "is not a list of nodes"},
        {"latency_us: 4, gbps: 2", "latency_us: 4, gbps: 14", "is faster than that of their level"},
        {"latency_us: 4, gbps: 2", "latency_us: 1, gbps: 2", "is faster than that of their level"},
        {"latency_us: 4, gbps: 2", "gbps: 2", "node_links has no latency_us; add it"},
        {"speed: 0.25", "speed: 1.25",
         "speed 1.25 is above 1, that of the fastest nodes; write the rates of the fastest in"},
        {"speed: 0.25", "speed: 0", "speed: \"0\" is not a number above 0"},
        {"speed: 0.25, ", "", "node_devices has no speed; add it"},
        {"memory_gib: 1.5", "memory_gib: 2.5", "memory_gib 2.5 is above the 2 of `device`"},
        {"memory_gib: 1.5", "memory_gb: 1.5", "the key \"memory_gb\""},
        {"nodes: [0], speed", "nodes: [2], speed", "node_devices: node 2 is there twice"},
        {"nodes: [0], speed", "nodes: [0.5], speed", "node_devices: 0.5 is no node"},
        {"nodes: [0], speed", "nodes: 0, speed", "node_devices: is not a list of nodes"},
        {"nodes: [0], speed", "speed", "node_devices has no nodes; add it"}};
    (void)state;
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++)
        expect_refused_in(full, fault[i][0], fault[i][1], fault[i][2]);
}

/* Replaces the first `from` of a file. */
static void expect_refused_in(const char *whole, const char *from, const char *to,
                              const char *message)
{
    char text[4096];
    Arena arena;
    Cluster c = {.name = "untouched"};
    const char *at = strstr(whole, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    DO(arena_open(&arena, "cluster", 1 << 20));
    expect_error(to, read_text(text, &arena, &c), ERR_CONFIG, message);
    assert_string_equal(c.name, "untouched");
    arena_close(&arena);
}

static void expect_refused(const char *from, const char *to, const char *message)
{
    expect_refused_in(good, from, to, message);
}

static void faults_are_refused(void **state)
{
    (void)state;
    expect_refused("memory_gib: 2", "memory_gib: -2", ":4: memory_gib: \"-2\" is not a number");
    expect_refused("memory_gib: 2", "memory_gib: 0", "above 0");
    expect_refused("memory_gib: 2", "memory_gib: 2 GB", "\"2 GB\" is not a number");
    expect_refused("memory_gib: 2", "memory_gib: [2]", "memory_gib: \"a list or map\"");
    expect_refused("memory_gib: 2", "memory_gib: 2\n  host_memory: 1",
                   ":5: host_memory: is neither true nor false");
    expect_refused("launch_us: 0", "launch_us: -1", "of at least 0");
    expect_refused("  host_gbps: 11\n", "", "device has no host_gbps; add it");
    expect_refused("host_gbps: 11", "host_gbps: 11\n  colour: 3", "the key \"colour\"");
    expect_refused("host_gbps: 11", "host_gbps: 11\n  host_gbps: 12", "has a key twice");
    expect_refused("f32: 2, ", "", "gemm_tflops has no f32; add it");
    expect_refused("f32: 2, ", "f32: 2, fp4: 3, ", "gemm_tflops: has a key that no cluster");
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
    assert_true(c.share_links == again.share_links);
    assert_true(c.overlaps == again.overlaps && c.rates.n_levels == again.rates.n_levels);
    const double *x = (const double *)&c.rates, *y = (const double *)&again.rates;
    for (size_t i = 0; i < offsetof(CostRates, tiles) / sizeof *x; i++)
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

/* Adds the next block of YAML of a document; returns what follows it. */
static const char *add_block(const char *at, Text *out)
{
    static const char open[] = "```yaml\n";
    at = strstr(at, open);
    assert_non_null(at);
    at += strlen(open);
    const char *end = strstr(at, "```");
    assert_non_null(end);
    text_add(out, "%.*s", (int)(end - at), at);
    return end + 3;
}

/* The blocks of docs/CLUSTER.md: the smallest file, and with its other blocks behind it. */
static void documented_files_are_read(void **state)
{
    const char *page, *text, *rest;
    size_t length;
    Arena arena;
    Cluster c;
    (void)state;
    DO(arena_open(&arena, "cluster", 1 << 20));
    DO(text_read_file("docs/CLUSTER.md", 1 << 20, &arena, &page, &length));
    Text t = text_in(&arena);
    rest = add_block(page, &t);
    DO(text_done(&t, &text));
    DO(read_text(text, &arena, &c));
    t = text_in(&arena);
    const char *first = strstr(text, "{ranks: 8");
    assert_non_null(first);
    text_add(&t, "%.*s{level: node, %s", (int)(first - text), text, first + 1);
    for (int i = 0; i < 3; i++) rest = add_block(rest, &t);
    DO(text_done(&t, &text));
    DO(read_text(text, &arena, &c));
    assert_int_equal(c.rates.n_tables, 1);
    assert_int_equal(c.rates.nodes->n_links, 2);
    assert_int_equal(c.rates.nodes->n_devices, 8);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_have_their_units),
                                       cmocka_unit_test(faults_are_refused),
                                       cmocka_unit_test(written_files_are_read),
                                       cmocka_unit_test(shipped_files_are_read),
                                       cmocka_unit_test(documented_files_are_read),
                                       cmocka_unit_test(optional_keys_are_read_and_written),
                                       cmocka_unit_test(faults_of_optional_keys_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
