/* Safetensors headers: written headers can be read, violations are refused with the rule, and a
 * flipped bit never goes unnoticed. */
#include <stdio.h>
#include "support/state_test.h"

static Err parse(const char *json, int64_t data_bytes, StFile *f)
{
    static char head[4096];
    const size_t n = strlen(json);
    for (int i = 0; i < 8; i++) head[i] = (char)(n >> 8 * i);
    memcpy(head + 8, json, n);
    return st_parse("x.safetensors", head, 8 + n, (int64_t)(8 + n) + data_bytes, &arena, f);
}

static void hostile(void **state)
{
    static const struct {
        const char *json;
        int64_t data_bytes;
        const char *says;
    } row[] = {
        {"", 0, "does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {"{", 0, "not good JSON"},
        {"{} x", 0, "not good JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate object key"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "duplicate object key"},
        {"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "UTF-8"},
        {"{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "NUL"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":{}}}", 0, "\"k\" is not a string"},
        {"{\"a\":7}", 0, "tensor \"a\" is not an object"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"F33\""},
        {"{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a string"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no \"dtype\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "has a \"x\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "extent 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "extent 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "not a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "9 dims"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "more bytes than 2^63"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0,
         "too big integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "make 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "a later end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "a later end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "there is a hole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         12, "they overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
         "the rest belongs to no tensor"},
        {"{}", 1, "the rest belongs to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", 4, "4 deep"},
        {"{\"[[[[[[\":[[[[[[]]]]]]}", 0, "7 deep"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        StFile f;
        expect_error(row[i].json, parse(row[i].json, row[i].data_bytes, &f), ERR_CHECK,
                     row[i].says);
        assert_non_null(strstr(err_text(), "x.safetensors"));
    }
}

/* The eight bytes of the length, and truncated files. */
static void lengths(void **state)
{
    unsigned char head[16] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    StFile f;
    (void)state;
    DO(st_parse("f", head, 10, 10, &arena, &f));
    assert_int_equal(f.n, 0);
    assert_int_equal(f.data_at, 10);
    for (size_t n = 0; n < 10; n++)
        expect_error("cut", st_parse("f", head, n, (int64_t)n, &arena, &f), ERR_CHECK, "truncated");
    head[7] = 0x80;
    expect_error("2^63", st_parse("f", head, 10, 10, &arena, &f), ERR_CHECK, "the format allows");
    head[7] = 0, head[3] = 6; /* 100,663,298 */
    expect_error("100 MB", st_parse("f", head, 10, INT64_MAX, &arena, &f), ERR_CHECK,
                 "a header of 100663298 bytes");
    const char *path = scratch_text("short", "abc");
    expect_error("a short file", st_read(path, &arena, &f), ERR_CHECK, "truncated");
    expect_error("none", st_read(scratch("none"), &arena, &f), ERR_CHECK, "does not exist");
    expect_error("a folder", st_read("/", &arena, &f), ERR_CHECK, "not a plain file");
}

/* Random files: any types, shapes with zeros or without dims, names that need quoting. */
static StFile random_file(Dice *dice)
{
    static const char *const stem[] = {"a", "b\"c", "d\\e", "\xc3\xa4", "f/g", "h i", "@1,2", "\n"};
    StFile f = {.path = "random", .n = (int)roll(dice, 9), .n_pairs = (int)roll(dice, 3)};
    DO(ARENA_NEW(&arena, f.n, &f.tensor));
    StPair *pair;
    DO(ARENA_NEW(&arena, f.n_pairs, &pair));
    for (int i = 0; i < f.n_pairs; i++) pair[i] = (StPair){i ? "k\"" : "q", stem[roll(dice, 8)]};
    f.pair = pair;
    for (int i = 0; i < f.n; i++) {
        StTensor *t = &f.tensor[i];
        char name[64];
        t->type = (StType)roll(dice, N_ST_TYPES);
        t->ndim = (int)roll(dice, MAX_ST_DIMS + 1);
        t->at = f.data_bytes;
        t->bytes = st_type_bytes(t->type);
        for (int d = 0; d < t->ndim; d++)
            t->bytes *= t->n[d] = roll(dice, 12) ? 1 + roll(dice, 3) : 0;
        f.data_bytes += t->bytes;
        snprintf(name, sizeof name, "%s%d", stem[roll(dice, 8)], i);
        DO(arena_string(&arena, name, &t->name));
    }
    return f;
}

static void round_trip(void **state)
{
    Dice dice = dice_of(7);
    (void)state;
    for (int round = 0; round < 300; round++) {
        const StFile f = random_file(&dice);
        const char *head;
        size_t bytes;
        StFile g;
        DO(st_header(&f, &arena, &head, &bytes));
        assert_int_equal(bytes % 64, 0);
        DO(st_parse("again", head, bytes, (int64_t)bytes + f.data_bytes, &arena, &g));
        assert_int_equal(g.n, f.n);
        assert_int_equal(g.data_bytes, f.data_bytes);
        for (int i = 0; i < f.n; i++) {
            const StTensor *x = &f.tensor[i], *y = st_find(&g, x->name);
            assert_non_null(y);
            assert_true(x->type == y->type && x->ndim == y->ndim && x->at == y->at &&
                        x->bytes == y->bytes);
            assert_memory_equal(x->n, y->n, sizeof x->n);
        }
        for (int i = 0; i < f.n_pairs; i++)
            assert_string_equal(st_meta(&g, f.pair[i].key), f.pair[i].value);
        assert_null(st_find(&g, "none"));
        arena_rewind(&arena, 0);
    }
}

/* Headers that would be refused are not written. */
static void not_made(void **state)
{
    const char *head;
    size_t bytes;
    StTensor t[2] = {{"a", ST_F32, 1, {2}, 0, 8}, {"a", ST_F32, 1, {2}, 8, 8}};
    StFile f = {.path = "mine", .n = 2, .tensor = t, .data_bytes = 16};
    (void)state;
    expect_error("twice", st_header(&f, &arena, &head, &bytes), ERR_CHECK, "duplicate");
    t[1].name = "b\xff";
    expect_error("UTF-8", st_header(&f, &arena, &head, &bytes), ERR_CHECK, "not UTF-8");
    t[1].name = "b", t[1].at = 4;
    expect_error("overlap", st_header(&f, &arena, &head, &bytes), ERR_CHECK, "overlap");
}

/* Flips each bit of a header: an error, or another hash. The manifest requires the original hash,
 * so each flip is detected. */
static void flipped(void **state)
{
    const StateTensors t = example_tensors();
    const RankFile f = example_rank(&t, 0);
    const char *head;
    size_t bytes, n_errors = 0;
    StFile g, h;
    (void)state;
    DO(rank_file_header(&t, &f, &arena, &head, &bytes));
    DO(st_parse("f", head, bytes, f.bytes, &arena, &g));
    char *copy = malloc(bytes);
    for (size_t i = 0; i < 8 * bytes; i++) {
        const size_t mark = arena_mark(&arena);
        memcpy(copy, head, bytes);
        copy[i / 8] = (char)(copy[i / 8] ^ 1 << i % 8);
        if (st_parse("f", copy, bytes, f.bytes, &arena, &h) != OK)
            n_errors++;
        else
            assert_true(h.header_hash != g.header_hash);
        arena_rewind(&arena, mark);
    }
    assert_true(n_errors > bytes); /* most were parsed and refused */
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hostile, setup, teardown),
        cmocka_unit_test_setup_teardown(lengths, setup, teardown),
        cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(not_made, setup, teardown),
        cmocka_unit_test_setup_teardown(flipped, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
