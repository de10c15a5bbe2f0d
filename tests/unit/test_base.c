/* test_base.c -- errors, arenas, text and random numbers. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/philox.h"
#include "base/text.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* sanitizers reserve more addresses than any limit that a test could set */
#else
#define SANITIZED 0
#endif

static Err half(int value, int *out)
{
    if (value % 2) return err_fail(ERR_CONFIG, "%d is odd; take %d", value, value + 1);
    *out = value / 2;
    return OK;
}

static Err quarter(int value, int *out)
{
    int halved;
    TRY(half(value, &halved));
    TRY(half(halved, out));
    return OK;
}

static void err_passes_code_and_message_up(void **state)
{
    int out = 77;
    (void)state;
    assert_int_equal(quarter(12, &out), OK);
    assert_int_equal(out, 3);
    out = 77;
    assert_int_equal(quarter(14, &out), ERR_CONFIG);
    assert_string_equal(err_text(), "7 is odd; take 8");
    assert_int_equal(out, 77);
    assert_int_equal(err_fail(ERR_IO, "run.yaml: %s", err_text()), ERR_IO);
    assert_string_equal(err_text(), "run.yaml: 7 is odd; take 8");
}

static void arena_aligns_zeroes_and_stops_at_its_cap(void **state)
{
    Arena a;
    void *p, *untouched = &a;
    double *d;
    const char *s;
    (void)state;
    assert_int_equal(arena_open(&a, "small", 512), OK);
    memset(a.base, 0x5C, 512);
    assert_int_equal(arena_push(&a, 3, &p), OK);
    assert_ptr_equal(p, a.base);
    assert_int_equal(ARENA_NEW(&a, 5, &d), OK);
    assert_int_equal((char *)d - a.base, 64);
    for (int i = 0; i < 5; i++) assert_true(d[i] == 0.0);
    assert_int_equal(arena_string(&a, "pipeline", &s), OK);
    assert_string_equal(s, "pipeline");
    assert_int_equal(arena_push(&a, 321, &untouched), ERR_NOMEM); /* 192 .. 513 */
    assert_non_null(strstr(err_text(), "arena small: 321 more bytes"));
    assert_ptr_equal(untouched, &a);
    assert_int_equal(arena_push(&a, 320, &p), OK); /* ends exactly at the cap */
    assert_int_equal(a.used_bytes, 512);
    assert_int_equal(arena_push(&a, 1, &p), ERR_NOMEM);
    assert_int_equal(arena_push(&a, SIZE_MAX, &p), ERR_NOMEM);
    assert_int_equal(arena_new(&a, SIZE_MAX / 4, 8, &p), ERR_NOMEM);
    arena_close(&a);
}

static void arena_rewinds_and_poisons(void **state)
{
    Arena a;
    unsigned char *kept, *gone, *reused;
    (void)state;
    assert_int_equal(arena_open(&a, "rewound", ARENA_PLENTY), OK);
    assert_int_equal(ARENA_NEW(&a, 70, &kept), OK);
    memset(kept, 0x11, 70);
    const size_t mark = arena_mark(&a);
    assert_int_equal(ARENA_NEW(&a, 900, &gone), OK);
    memset(gone, 0x22, 900);
    const size_t peak = a.used_bytes;
    arena_rewind(&a, mark);
    assert_int_equal(kept[69], 0x11);
#ifndef NDEBUG
    for (int i = 0; i < 900; i++) assert_int_equal(gone[i], 0xA5);
#endif
    assert_int_equal(ARENA_NEW(&a, 10, &reused), OK);
    assert_ptr_equal(reused, gone);
    for (int i = 0; i < 10; i++) assert_int_equal(reused[i], 0);
    assert_int_equal(a.peak_bytes, peak);
    arena_close(&a);
}

/* A closed arena leaves its pages to the next one of its size; two that are open share none. */
static void arena_is_reopened(void **state)
{
    enum { BYTES = 1 << 20, MANY = 12 << 20 };
    Arena a, b;
    char *old, *new;
    void *p;
    (void)state;
    assert_int_equal(arena_open(&a, "first", (size_t)1 << 27), OK);
    assert_int_equal(arena_push(&a, BYTES, &p), OK);
    memset(p, 0x33, BYTES);
    arena_close(&a);
    assert_int_equal(arena_open(&a, "second", (size_t)1 << 27), OK);
    assert_int_equal(arena_open(&b, "third", (size_t)1 << 27), OK);
    assert_string_equal(a.name, "second");
    assert_int_equal(a.used_bytes, 0);
    assert_int_equal(a.peak_bytes, 0);
    assert_int_equal(ARENA_NEW(&a, BYTES, &old), OK);
    assert_int_equal(ARENA_NEW(&b, MANY, &new), OK);
    for (int i = 0; i < BYTES; i++) assert_true(old[i] == 0 && new[i] == 0);
    memset(old, 0x44, BYTES);
    memset(new, 0x55, MANY);
    for (int i = 0; i < BYTES; i++) assert_int_equal(old[i], 0x44);
    arena_close(&b); /* of many pages: returned to the system */
    assert_int_equal(arena_open(&b, "fourth", (size_t)1 << 27), OK);
    assert_int_equal(arena_push(&b, MANY, &p), OK);
    for (int i = 0; i < MANY; i++) assert_int_equal(((char *)p)[i], 0);
    arena_close(&a);
    arena_close(&b);
}

/* Addresses that closed arenas have left are returned where a limit leaves no others. */
static void arena_opens_within_a_limit(void **state)
{
    enum { BITS = 36 };
    const struct rlimit most = {(rlim_t)3 << (BITS - 1), RLIM_INFINITY};
    struct rlimit before;
    Arena a;
    (void)state;
    if (SANITIZED) return;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(arena_open(&a, "kept", (size_t)1 << BITS), OK);
    arena_close(&a);
    assert_int_equal(setrlimit(RLIMIT_AS, &most), 0);
    const Err err = arena_open(&a, "other", ((size_t)1 << BITS) - 4096);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(err, OK);
    arena_close(&a);
}

static void allocate_some(Arena *a)
{
    int64_t *n;
    char *c;
    void *p;
    const char *s;
    assert_int_equal(ARENA_NEW(a, 3, &n), OK);
    const size_t mark = arena_mark(a);
    assert_int_equal(arena_push(a, 1000, &p), OK);
    arena_rewind(a, mark);
    assert_int_equal(ARENA_NEW(a, 65, &c), OK);
    assert_int_equal(arena_string(a, "name", &s), OK);
    Text t = text_in(a);
    for (int i = 0; i < 100; i++) text_add(&t, "%d,", i);
    assert_int_equal(text_done(&t, &s), OK);
}

static void counting_arena_measures_the_same(void **state)
{
    Arena real, counter = arena_counter("counts", ARENA_PLENTY);
    void *p = &real;
    (void)state;
    assert_int_equal(arena_open(&real, "real", ARENA_PLENTY), OK);
    allocate_some(&real);
    allocate_some(&counter);
    assert_int_equal(counter.used_bytes, real.used_bytes);
    assert_int_equal(counter.peak_bytes, real.peak_bytes);
    assert_true(real.peak_bytes > real.used_bytes);
    assert_int_equal(arena_push(&counter, 8, &p), OK);
    assert_null(p);
    assert_int_equal(arena_push(&counter, ARENA_PLENTY, &p), ERR_NOMEM);
    arena_close(&real);
    arena_close(&counter);
}

static void text_grows_in_its_arena(void **state)
{
    Arena a;
    const char *before, *text, *after;
    char expected[10000] = "", piece[64];
    (void)state;
    assert_int_equal(arena_open(&a, "text", 16384), OK);
    assert_int_equal(arena_string(&a, "before", &before), OK);
    Text t = text_in(&a);
    for (int i = 0; strlen(expected) < 9000; i++) {
        snprintf(piece, sizeof piece, "%d:%.*s ", i, i % 29, "abcdefghijklmnopqrstuvwxyzabc");
        text_add(&t, "%s", piece);
        strcat(expected, piece);
    }
    assert_int_equal(text_done(&t, &text), OK);
    assert_string_equal(text, expected);
    assert_int_equal(a.used_bytes, (size_t)(text - a.base) + strlen(expected) + 1);
    assert_int_equal(arena_string(&a, "after", &after), OK);
    assert_string_equal(text, expected);
    assert_string_equal(before, "before");

    t = text_in(&a);
    assert_int_equal(text_done(&t, &text), OK);
    assert_string_equal(text, "");

    t = text_in(&a);
    text_add(&t, "%20000d", 1); /* does not fit: the error is kept, and later text is skipped */
    text_add(&t, "x");
    assert_int_equal(text_done(&t, &text), ERR_NOMEM);
    arena_close(&a);
}

static void text_reads_files_whole(void **state)
{
    char path[] = "/tmp/sheaf_text_XXXXXX";
    Arena a;
    const char *text;
    size_t length;
    (void)state;
    FILE *file = fdopen(mkstemp(path), "wb");
    assert_non_null(file);
    for (int i = 0; i < 200001; i++) fputc(i % 251, file); /* zeros inside; several blocks */
    fclose(file);
    assert_int_equal(arena_open(&a, "file", ARENA_PLENTY), OK);
    assert_int_equal(text_read_file(path, 200001, &a, &text, &length), OK);
    assert_int_equal(length, 200001);
    for (int i = 0; i < 200001; i++)
        if ((unsigned char)text[i] != i % 251) fail_msg("byte %d is %d", i, text[i]);
    assert_int_equal(text[200001], '\0');

    const size_t mark = arena_mark(&a);
    assert_int_equal(text_read_file(path, 200000, &a, &text, &length), ERR_IO);
    assert_non_null(strstr(err_text(), path));
    assert_non_null(strstr(err_text(), "200000"));
    assert_int_equal(arena_mark(&a), mark);
    unlink(path);
    assert_int_equal(text_read_file(path, 9, &a, &text, &length), ERR_IO);
    assert_non_null(strstr(err_text(), "No such file"));
    assert_int_equal(text_read_file("/tmp", 9, &a, &text, &length), ERR_IO);
    assert_non_null(strstr(err_text(), "/tmp: cannot read: Is a directory"));
    arena_close(&a);
}

static void glob_stars_match_runs(void **state)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } row[] = {
        {"*.q_proj.weight", "layers.3.self_attn.q_proj.weight", true},
        {"*.q_proj.weight", "layers.3.self_attn.q_proj.bias", false},
        {"*.q_proj.weight", "q_proj.weight", false},
        {"layers.*.mlp.*", "layers.11.mlp.up_proj.weight", true},
        {"layers.*.mlp.*", "layers.11.mlp", false},
        {"a*b*c", "abbbcbc", true},
        {"a*b*c", "abbbcb", false},
        {"*ab", "aab", true},
        {"*aab*b", "aaaabcb", true},
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"**", "anything", true},
        {"residual", "residual", true},
        {"residual", "residual2", false},
        {"residual2", "residual", false},
        {"a.c", "abc", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char longer[64]; /* the text after the part does not belong to it */
        snprintf(longer, sizeof longer, "%s*%s", row[i].pattern, row[i].name);
        if (text_glob(row[i].pattern, row[i].name) != row[i].matches ||
            text_glob_part(longer, strlen(row[i].pattern), row[i].name) != row[i].matches)
            fail_msg("%s against %s", row[i].pattern, row[i].name);
    }
}

static void nearest_suggests_typos_only(void **state)
{
    static const char *const key[] = {
        "mesh.tp",           "mesh.pp",     "mesh.dp_shard", "batch.global", "parallel.recompute",
        "parallel.schedule", "run.threads", "optim.lr",      "optim.min_lr"};
    static const struct {
        const char *word, *nearest;
    } row[] = {
        {"mesh.tpp", "mesh.tp"},
        {"mesh.pt", "mesh.tp"}, /* a swap is one edit; mesh.pp is one too, and comes later */
        {"MESH.DP_SHARD", "mesh.dp_shard"},
        {"paralel.recompuet", "parallel.recompute"},
        {"parallel.shedule", "parallel.schedule"},
        {"bach.gloabl", "batch.global"},
        {"threads", NULL},
        {"zzz", NULL},
        {"", NULL},
    };
    char long_word[400];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *got = text_nearest(row[i].word, key, sizeof key / sizeof *key);
        if (row[i].nearest ? !got || strcmp(got, row[i].nearest) : got != NULL)
            fail_msg("%s: suggests %s", row[i].word, got ? got : "nothing");
    }
    memset(long_word, 'a', sizeof long_word);
    long_word[399] = '\0';
    const char *const lengthy = long_word;
    assert_null(text_nearest(long_word, key, 9));
    assert_null(text_nearest("aaaa", &lengthy, 1));
    assert_null(text_nearest("mesh.tp", key, 0));
}

static void bytes_and_counts_are_formatted(void **state)
{
    char b[24];
    (void)state;
    assert_string_equal(text_bytes(0, b), "0 B");
    assert_string_equal(text_bytes(1023, b), "1023 B");
    assert_string_equal(text_bytes(1024, b), "1.0 KiB");
    assert_string_equal(text_bytes(1536, b), "1.5 KiB");
    assert_string_equal(text_bytes(1024 * 1024 - 1, b), "1.0 MiB");
    assert_string_equal(text_bytes((int64_t)12 << 30, b), "12.0 GiB");
    assert_string_equal(text_bytes(-1536, b), "-1.5 KiB");
    assert_string_equal(text_bytes(INT64_MAX, b), "8.0 EiB");
    assert_string_equal(text_bytes(INT64_MIN, b), "-8.0 EiB");
    assert_string_equal(text_count(0, b), "0");
    assert_string_equal(text_count(999, b), "999");
    assert_string_equal(text_count(2.25, b), "2.2");
    assert_string_equal(text_count(1500, b), "1.5k");
    assert_string_equal(text_count(999960, b), "1.0M");
    assert_string_equal(text_count(12e9, b), "12.0G");
    assert_string_equal(text_count(-3.5e15, b), "-3.5P");
    assert_string_equal(text_count(1e300, b), "1.0e+300");
    assert_string_equal(text_count(HUGE_VAL, b), "inf");
    char counted[COUNTED_BYTES];
    assert_string_equal(text_counted(1, "clip", counted), "1 clip");
    assert_string_equal(text_counted(0, "clip", counted), "0 clips");
}

/* The published known answers (Random123, kat_vectors). */
static void philox_gives_the_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } row[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint32_t out[4];
        philox(row[i].key, row[i].counter, out);
        assert_memory_equal(out, row[i].out, sizeof out);
    }
}

/* The seed is in the key, the index in the low half of the counter and the name in the high half. A
 * seed determines users' initial weights, so this order must not change. */
static void random_streams_are_stable(void **state)
{
    const Random r = random_named(0x299f31d0a4093822, "layers.3.mlp.up_proj.weight");
    const uint32_t counter[4] = {7, 2, r.high[0], r.high[1]};
    uint32_t out[4];
    (void)state;
    assert_int_equal(r.key[0], 0xa4093822);
    assert_int_equal(r.key[1], 0x299f31d0);
    philox(r.key, counter, out);
    assert_int_equal(random_bits(&r, (uint64_t)2 << 32 | 7), (uint64_t)out[1] << 32 | out[0]);
    const Random a = random_named(1, "a"); /* FNV-1a of "a", as published */
    assert_int_equal((uint64_t)a.high[1] << 32 | a.high[0], 0xaf63dc4c8601ec8c);
    assert_int_not_equal(random_bits(&a, 0),
                         random_bits(&(Random){{2, 0}, {a.high[0], a.high[1]}}, 0));
}

/* Compares with the formula by libm, from which ours differs by a few units in the last place. An
 * element has the same bits alone, in a block, and past its end. */
static void normals_match_formula_and_blocks(void **state)
{
    enum { N = 50 * 64 + 37 };
    static double x[N];
    static uint64_t index[N];
    const Random r = random_named(11, "normals");
    (void)state;
    for (int i = 0; i < N; i++) index[i] = (uint64_t)i * 0x9E3779B97F4A7C15u;
    random_normals(&r, index, N, x);
    for (int i = 0; i < N; i++) {
        uint32_t word[4];
        philox(r.key,
               (const uint32_t[]){(uint32_t)index[i], (uint32_t)(index[i] >> 32), r.high[0],
                                  r.high[1]},
               word);
        const double a = (double)(((uint64_t)word[1] << 32 | word[0]) >> 11) * 0x1p-53;
        const double b = (double)(((uint64_t)word[3] << 32 | word[2]) >> 11) * 0x1p-53;
        const double radius = sqrt(-2 * log(1 - a));
        assert_true(fabs(x[i] - radius * cos(6.283185307179586476925 * b)) <= 4e-15 * radius);
        assert_true(random_normal(&r, index[i]) == x[i]);
    }
}

static void uniform_and_normal_have_their_moments(void **state)
{
    enum { N = 200000 };
    const Random r = random_named(42, "moments");
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n3 = 0, n4 = 0, neighbours = 0, last = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = random_uniform(&r, i), z = random_normal(&r, i);
        assert_true(u >= 0.0 && u < 1.0 && isfinite(z));
        assert_true(u == (double)(random_bits(&r, i) >> 11) / 9007199254740992.0);
        u1 += u, u2 += u * u;
        n1 += z, n2 += z * z, n3 += z * z * z, n4 += z * z * z * z;
        neighbours += z * last;
        last = z;
    }
    const double five_sigma = 5.0 / sqrt(N); /* each times the deviation of one term */
    assert_true(fabs(u1 / N - 0.5) < five_sigma * sqrt(1.0 / 12));
    assert_true(fabs(u2 / N - 1.0 / 3) < five_sigma * sqrt(4.0 / 45));
    assert_true(fabs(n1 / N) < five_sigma);
    assert_true(fabs(n2 / N - 1) < five_sigma * sqrt(2));
    assert_true(fabs(n3 / N) < five_sigma * sqrt(15));
    assert_true(fabs(n4 / N - 3) < five_sigma * sqrt(96));
    assert_true(fabs(neighbours / N) < five_sigma);
}

static void expect_bijection(const Random *r, uint64_t n, unsigned char *seen)
{
    memset(seen, 0, n);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t image = random_permute(r, n, i);
        if (image >= n || seen[image]++)
            fail_msg("n = %llu: %llu goes to %llu", (unsigned long long)n, (unsigned long long)i,
                     (unsigned long long)image);
    }
}

static void permute_is_a_bijection_for_every_n(void **state)
{
    static unsigned char seen[70000];
    const Random r = random_named(3, "sample order");
    (void)state;
    for (uint64_t n = 1; n <= 300; n++) expect_bijection(&r, n, seen);
    for (uint64_t n = 1021; n < 5000; n = n * 3 / 2) expect_bijection(&r, n, seen);
    expect_bijection(&r, 65536, seen);
    expect_bijection(&r, 65537, seen);
    const uint64_t huge[] = {(uint64_t)1 << 32, ((uint64_t)1 << 62) + 1, UINT64_MAX};
    for (int i = 0; i < 3; i++) assert_true(random_permute(&r, huge[i], huge[i] - 1) < huge[i]);
}

/* Over seeds every image of every index is equally likely: chi-square of 7 x 7 cells, 36 degrees of
 * freedom, 86 is passed once in 10^5.6. */
static void permute_mixes_small_sets(void **state)
{
    enum { N = 7, SEEDS = 7000 };
    int hits[N][N] = {{0}};
    double chi = 0;
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const Random r = random_named(seed, "epoch");
        for (uint64_t i = 0; i < N; i++) hits[i][random_permute(&r, N, i)]++;
    }
    for (int i = 0; i < N * N; i++) {
        const double off = hits[i / N][i % N] - SEEDS / N;
        chi += off * off / (SEEDS / N);
    }
    assert_true(chi < 86.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_passes_code_and_message_up),
        cmocka_unit_test(arena_aligns_zeroes_and_stops_at_its_cap),
        cmocka_unit_test(arena_rewinds_and_poisons),
        cmocka_unit_test(arena_is_reopened),
        cmocka_unit_test(arena_opens_within_a_limit),
        cmocka_unit_test(counting_arena_measures_the_same),
        cmocka_unit_test(text_grows_in_its_arena),
        cmocka_unit_test(text_reads_files_whole),
        cmocka_unit_test(glob_stars_match_runs),
        cmocka_unit_test(nearest_suggests_typos_only),
        cmocka_unit_test(bytes_and_counts_are_formatted),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(random_streams_are_stable),
        cmocka_unit_test(normals_match_formula_and_blocks),
        cmocka_unit_test(uniform_and_normal_have_their_moments),
        cmocka_unit_test(permute_is_a_bijection_for_every_n),
        cmocka_unit_test(permute_mixes_small_sets),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
