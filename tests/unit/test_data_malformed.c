/* test_data_malformed.c -- thousands of mutated files: each is an error, or can be read to its end.
 * Most useful under the address sanitizer. */
#include "base/philox.h"
#include "data/dataset.h"
#include "support/data_test.h"

enum { MUTANTS = 1000, N_KINDS = 5, VOCAB = 300 };

static Arena lasting; /* not rewound after each mutant */

static const TokenFormat kind_format[N_KINDS] = {FORMAT_TOKENS, FORMAT_TOKENS, FORMAT_MEGATRON,
                                                 FORMAT_JSONL, FORMAT_UINT16};

/* Builds a valid file of each kind, with the index of a Megatron pair. */
static void make_valid(int kind, Buffer *data, Buffer *index)
{
    static const int64_t id[] = {4, 250, 9, 12, 255, 0, 1, 77, 200, 131, 5};
    static const int size[] = {3, 0, 5, 3}, document[] = {0, 2, 3, 4};
    *index = (Buffer){0};
    *data = (Buffer){0};
    if (kind == 0) *data = llmc_file(20240520, 1, id, 11, 2);
    if (kind == 1) *data = llmc_file(20240801, 7, id, 11, 4);
    if (kind == 2)
        *data = array_file(id, 11, 4), *index = megatron_index(4, 4, size, 4, document, 4);
    if (kind == 3)
        buffer_text(data, "{\"text\": \"a\\u00e4b\"}\n{\"text\": \"c\", \"n\": [1, {}]}\n");
    if (kind == 4) *data = array_file(id, 11, 2);
}

typedef struct {
    Random random;
    uint64_t next;
} Dice;

static uint64_t roll(Dice *d, uint64_t n) { return random_bits(&d->random, d->next++) % n; }

/* Inserts bytes that readers fail on: counts and offsets at the limits of their types. */
static void mutate(Buffer *b, Dice *dice)
{
    static const uint64_t edge[] = {0,
                                    1,
                                    0x7F,
                                    0xFF,
                                    0x7FFFFFFF,
                                    0x80000000,
                                    0xFFFFFFFF,
                                    UINT64_MAX,
                                    INT64_MAX,
                                    (uint64_t)1 << 60,
                                    0x5555555555555556u /* times 12 is 8 */};
    static const size_t field[] = {0, 4, 8, 9, 17, 18, 26, 34};
    const int kind = (int)roll(dice, 6);
    if (b->bytes == 0) return;
    if (kind == 0) b->bytes = (size_t)roll(dice, b->bytes + 1); /* cut short */
    if (kind == 1) buffer_put(b, roll(dice, 256), 1);           /* too long */
    if (kind == 2) b->at[roll(dice, b->bytes)] ^= (unsigned char)(1 << roll(dice, 8));
    if (kind == 3) b->at[roll(dice, b->bytes)] = (unsigned char)roll(dice, 256);
    if (kind < 4) return;
    const size_t at = kind == 4 ? field[roll(dice, 8)] : (size_t)roll(dice, b->bytes);
    const int width = (int)(b->bytes - at < 8 ? b->bytes - at : 8);
    if (at < b->bytes) buffer_set(b, at, edge[roll(dice, 11)], width);
}

/* Reads every token and every border, as the trainer does. */
static void read_whole(const Tokens *t)
{
    static TokenStats stats; /* its bits are not cleared between calls; they are not used */
    if (!stats.seen) DO(token_stats_init(&stats, &lasting));
    stats.n_documents = 0;
    assert_true(t->n_tokens >= 0);
    const Err err = tokens_scan(t, 0, t->n_tokens, VOCAB, &stats);
    assert_true(err == OK || err == ERR_CHECK);
    assert_true(stats.n_documents <= t->n_tokens);
    for (int64_t i = 0; i < t->n_tokens; i++) {
        const int64_t next = tokens_next_start(t, i, t->n_tokens);
        assert_true(next > i && next <= t->n_tokens);
    }
}

/* Memory of exactly that size, so that the sanitizer reports a read past the end. */
static Bytes exact(const Buffer *b)
{
    unsigned char *copy = malloc(b->bytes);
    if (b->bytes) memcpy(copy, b->at, b->bytes);
    return (Bytes){copy, b->bytes};
}

static bool survives(int kind, const Buffer *data, const Buffer *index)
{
    const size_t mark = arena_mark(&arena);
    const Bytes d = exact(data), x = exact(index);
    Tokens t;
    const Err err = tokens_parse("mutant", kind_format[kind], d, x, &arena, &t);
    assert_true(err == OK || err == ERR_CHECK || err == ERR_CONFIG);
    if (err == OK)
        read_whole(&t);
    else
        assert_non_null(strstr(err_text(), "mutant"));
    free((void *)d.at);
    free((void *)x.at);
    arena_rewind(&arena, mark);
    return err == OK;
}

/* The same through a file and a data set, in any format that auto chooses. */
static void survives_as_a_file(const Buffer *data, const Buffer *index)
{
    const size_t mark = arena_mark(&arena);
    const char *path = scratch_write("mutant.bin", data);
    const DatasetSettings s = {&path, 1, FORMAT_AUTO, 4, true, VOCAB, 1, NULL, 0, NULL, NULL};
    int32_t tokens[4], targets[4], positions[4], ranges[16];
    float weights[4];
    const InputRows in = {tokens, targets, positions, ranges, weights, F32, NULL};
    Dataset d;
    if (index->bytes)
        scratch_write("mutant.idx", index);
    else
        remove(scratch("mutant.idx"));
    if (dataset_open(&s, &arena, &d) == OK) {
        for (int64_t i = 0; i < d.n_samples; i++) (void)dataset_fill(&d, i, 3, &in, 0);
        (void)dataset_fingerprint(&d);
        dataset_close(&d);
    }
    arena_rewind(&arena, mark);
}

static void mutants_are_refused_or_read(void **state)
{
    (void)state;
    int n_valid = 0;
    DO(arena_open(&lasting, "lasting", 1 << 22));
    for (int m = 0; m < MUTANTS; m++) {
        Dice dice = {random_named((uint64_t)m, "mutants"), 0};
        const int kind = m % N_KINDS, changes = 1 + (int)roll(&dice, 3);
        Buffer data, index;
        make_valid(kind, &data, &index);
        assert_true(survives(kind, &data, &index)); /* the unmodified file is valid */
        for (int c = 0; c < changes; c++)
            mutate(index.bytes && roll(&dice, 3) ? &index : &data, &dice);
        n_valid += survives(kind, &data, &index);
        if (m % 10 == 0) survives_as_a_file(&data, &index);
        buffer_free(&data);
        buffer_free(&index);
    }
    arena_close(&lasting);
    assert_in_range(n_valid, MUTANTS / 20, MUTANTS * 3 / 4); /* mutants of both kinds occurred */
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    Buffer b = {0}, none = {0};
    buffer_text(&b, "{\"text\": ");
    for (int i = 0; i < 100000; i++) buffer_text(&b, "[");
    assert_false(survives(3, &b, &none)); /* refused: there is nothing to read */
    buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutants_are_refused_or_read),
        cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
