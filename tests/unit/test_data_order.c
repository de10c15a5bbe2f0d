/* test_data_order.c -- the order of samples: each once per epoch, under any number of ranks; and
 * the identity of streams. */
#include "support/data_test.h"
#include "data/dataset.h"

static Dataset open_text(int64_t seq_len, uint64_t seed)
{
    static const char *path[1];
    Dataset d;
    char text[1001];
    for (int i = 0; i < 1000; i++) text[i] = (char)('a' + i % 26);
    text[1000] = '\0';
    path[0] = scratch_text("order.txt", text);
    const DatasetSettings s = {path, 1, FORMAT_AUTO, seq_len, true, 256, seed, NULL, 0, NULL, NULL};
    DO(dataset_open(&s, &arena, &d));
    return d;
}

static void an_epoch_holds_each_sample_once(void **state)
{
    (void)state;
    for (int64_t seq_len = 1; seq_len < 40; seq_len += 6) {
        Dataset d = open_text(seq_len, 5);
        for (int epoch = 0; epoch < 4; epoch++) {
            unsigned char seen[1000] = {0};
            for (int64_t i = 0; i < d.n_samples; i++)
                seen[dataset_sample(&d, epoch * d.n_samples + i)]++;
            for (int64_t i = 0; i < d.n_samples; i++) assert_int_equal(seen[i], 1);
        }
        dataset_close(&d);
    }
}

/* Counts the equal places of two orders: about one, if the orders are independent. */
static int agreeing(const Dataset *a, int64_t from_a, const Dataset *b, int64_t from_b)
{
    int n = 0;
    for (int64_t i = 0; i < a->n_samples; i++)
        n += dataset_sample(a, from_a + i) == dataset_sample(b, from_b + i);
    return n;
}

static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    Dataset a = open_text(3, 5), b = open_text(3, 6), again = open_text(3, 5);
    const int64_t n = a.n_samples;
    assert_int_equal(agreeing(&a, 0, &again, 0), n);
    assert_true(agreeing(&a, 0, &a, n) < 10);
    assert_true(agreeing(&a, n, &a, 2 * n) < 10);
    assert_true(agreeing(&a, 0, &b, 0) < 10);
    int in_place = 0;
    for (int64_t i = 0; i < n; i++) in_place += dataset_sample(&a, i) == i;
    assert_true(in_place < 10);
    dataset_close(&a);
    dataset_close(&b);
    dataset_close(&again);
}

/* Steps of `batch` samples, each distributed over the current number of ranks. */
static void read_by_ranks(const Dataset *d, int steps, int batch, const int *ranks, int *count)
{
    int64_t cursor = 0;
    for (int step = 0; step < steps; step++, cursor += batch)
        for (int rank = 0; rank < ranks[step % 3]; rank++) /* strided, as micro-batches are */
            for (int64_t j = rank; j < batch; j += ranks[step % 3])
                count[dataset_sample(d, cursor + j) * steps + step]++;
}

static void who_reads_changes_nothing(void **state)
{
    (void)state;
    enum { STEPS = 60, BATCH = 13 };
    static const int layout[][3] = {{1, 1, 1}, {2, 2, 2}, {4, 4, 4}, {13, 13, 13}, {3, 7, 2}};
    Dataset d = open_text(4, 9);
    const size_t n = (size_t)d.n_samples * STEPS;
    int *one = calloc(n, sizeof *one), *many = calloc(n, sizeof *many);
    read_by_ranks(&d, STEPS, BATCH, layout[0], one);
    for (int k = 1; k < 5; k++) {
        memset(many, 0, n * sizeof *many);
        read_by_ranks(&d, STEPS, BATCH, layout[k], many);
        assert_memory_equal(one, many, n * sizeof *one); /* the same samples in the same steps */
    }
    free(one);
    free(many);
    dataset_close(&d);
}

static uint64_t fingerprint(const char *path, TokenFormat format)
{
    const DatasetSettings s = {&path, 1, format, 8, true, 60000, 1, NULL, 0, NULL, NULL};
    Dataset d;
    DO(dataset_open(&s, &arena, &d));
    const uint64_t hash = dataset_fingerprint(&d);
    dataset_close(&d);
    return hash;
}

static void a_fingerprint_is_of_the_tokens(void **state)
{
    (void)state;
    enum { N = 30000 };
    static int64_t id[N];
    for (int i = 0; i < N; i++) id[i] = i * 31 % 251;
    Buffer text = array_file(id, N, 1), llmc = llmc_file(20240520, 1, id, N, 2);
    const uint64_t whole = fingerprint(scratch_write("f.txt", &text), FORMAT_TEXT);
    assert_true(fingerprint(scratch_write("f.bin", &llmc), FORMAT_AUTO) == whole);
    for (int change = 0; change < 3; change++) {
        static const int at[] = {0, N - 1, N / 256 * 100};
        text.at[at[change]] ^= 1;
        assert_true(fingerprint(scratch_write("g.txt", &text), FORMAT_TEXT) != whole);
        text.at[at[change]] ^= 1;
    }
    text.bytes--;
    assert_true(fingerprint(scratch_write("g.txt", &text), FORMAT_TEXT) != whole);
    const uint64_t one = fingerprint(scratch_text("h.jsonl", "{\"text\":\"ab\"}"), FORMAT_AUTO);
    assert_true(one == fingerprint(scratch_text("h.txt", "ab"), FORMAT_AUTO));
    assert_true(one != fingerprint(scratch_text("h.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}"),
                                   FORMAT_AUTO));
    buffer_free(&text);
    buffer_free(&llmc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_holds_each_sample_once),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(who_reads_changes_nothing),
        cmocka_unit_test(a_fingerprint_is_of_the_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
