/* test_data_dataset.c -- samples: every row against a definition that looks at each token alone;
 * the order: each sample once an epoch, whoever reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "data/dataset.h"
#include "data/writer.h"
#include "support/token_files.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

enum { MAX_STREAM = 512, MAX_ROWS = 128, EOT = 50256 };

static Arena arena;

static int setup(void **state)
{
    (void)state;
    return arena_open(&arena, "test", ARENA_PLENTY) != OK;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    arena_close(&arena);
    return 0;
}

/* What the files hold, told token by token while they are written. */
typedef struct {
    int64_t id[MAX_STREAM];
    int document[MAX_STREAM]; /* each token's own */
    int n, n_documents;
} Stream;

static void stream_add(Stream *s, int64_t id, bool starts)
{
    if (starts) s->n_documents++;
    s->document[s->n] = s->n_documents;
    s->id[s->n++] = id;
}

/* JSONL, then llm.c, an empty text, a Megatron pair, a text: documents of 0 to 9 tokens. */
static void write_files(Stream *s, const char **path, const Random *r)
{
    Buffer jsonl = {0}, none = {0};
    uint64_t k = 0;
    *s = (Stream){0};
    for (int d = 0; d < 7; d++) {
        const int n = (int)(random_bits(r, k++) % 9);
        buffer_text(&jsonl, "{\"text\": \"");
        for (int i = 0; i < n; i++) {
            const char c[] = {(char)('a' + random_bits(r, k++) % 26), '\0'};
            buffer_text(&jsonl, c);
            stream_add(s, c[0], i == 0);
        }
        buffer_text(&jsonl, "\"}\n");
    }
    path[0] = scratch_write("a.jsonl", &jsonl);

    int64_t id[40];
    for (int i = 0; i < 40; i++) {
        id[i] = random_bits(r, k++) % 6 == 0 ? EOT : (int64_t)(random_bits(r, k++) % 1000);
        stream_add(s, id[i], i == 0 || id[i] == EOT);
    }
    Buffer llmc = llmc_file(20240520, 1, id, 40, 2);
    path[1] = scratch_write("b.bin", &llmc);
    path[2] = scratch_write("c.txt", &none);

    int size[30], document[31] = {0}, n_docs = 0;
    Buffer bin = {0};
    bool pending = false;          /* a document has started and has no token yet */
    for (int q = 0; q < 30; q++) { /* sequences; some of them start a document */
        size[q] = (int)(random_bits(r, k++) % 5);
        if (q == 0 || random_bits(r, k++) % 2) document[n_docs++] = q, pending = true;
        for (int i = 0; i < size[q]; i++, pending = false) {
            const int64_t word = (int64_t)(random_bits(r, k++) % 60000);
            buffer_put(&bin, (uint64_t)word, 4);
            stream_add(s, word, pending);
        }
    }
    document[n_docs] = 30;
    Buffer idx = megatron_index(4, 4, size, 30, document, n_docs + 1);
    scratch_write("d.idx", &idx);
    path[3] = scratch_write("d.bin", &bin);
    static const char last[] = "the last one, a text";
    path[4] = scratch_text("e.txt", last);
    for (int i = 0; last[i]; i++) stream_add(s, last[i], i == 0);
    buffer_free(&jsonl);
    buffer_free(&llmc);
    buffer_free(&bin);
    buffer_free(&idx);
}

typedef struct {
    int32_t tokens[MAX_ROWS], targets[MAX_ROWS], positions[MAX_ROWS], ranges[MAX_ROWS][4];
    float weights[MAX_ROWS];
    double weights_f64[MAX_ROWS];
} Rows;

static InputRows inputs(Rows *r, DType type)
{
    return (InputRows){r->tokens,
                       r->targets,
                       r->positions,
                       &r->ranges[0][0],
                       type == F64 ? (void *)r->weights_f64 : (void *)r->weights,
                       type};
}

static bool sees(const Stream *s, bool pack, int64_t window, int64_t query, int64_t key)
{
    return key <= query && (!pack || s->document[key] == s->document[query]) &&
           (window == 0 || query - key < window);
}

/* In llm.c's file (tokens from..to) an EOT target ends the document before it. */
static bool counts(const Stream *s, bool pack, int64_t g, int64_t from, int64_t to)
{
    const bool ends = g >= from && g < to && s->id[g + 1] == EOT;
    return !pack || s->document[g] == s->document[g + 1] || ends;
}

static void check_sample(const Dataset *d, const Stream *s, int64_t sample, int64_t window,
                         int64_t row)
{
    const int64_t T = d->settings.seq_len, at = sample * T;
    const bool pack = d->settings.pack;
    Rows got;
    memset(&got, 0x55, sizeof got);
    const InputRows in = inputs(&got, sample % 2 ? F64 : F32);
    DO(dataset_fill(d, sample, window, &in, row));
    for (int64_t i = 0; i < T; i++) {
        const int64_t g = at + i, r = row + i;
        const double weight = sample % 2 ? got.weights_f64[r] : (double)got.weights[r];
        assert_int_equal(got.ranges[r][2], got.ranges[r][3]);
        if (g >= s->n - 1) { /* past the last target */
            assert_true(weight == 0);
            assert_true(got.ranges[r][0] == r && got.ranges[r][1] == r + 1);
            assert_true(got.tokens[r] == 0 && got.targets[r] == 0 && got.positions[r] == 0);
            continue;
        }
        int64_t first = i; /* row of the sample where this row's document starts */
        while (first > 0 && sees(s, pack, 0, g, at + first - 1)) first--;
        assert_int_equal(got.tokens[r], s->id[g]);
        assert_int_equal(got.targets[r], s->id[g + 1]);
        assert_int_equal(got.positions[r], i - first);
        for (int64_t key = 0; key < T; key++)
            assert_int_equal(row + key >= got.ranges[r][0] && row + key < got.ranges[r][1],
                             sees(s, pack, window, g, at + key));
        assert_true(got.ranges[r][0] >= row); /* never another sample of the micro-batch */
        assert_true(weight == (counts(s, pack, g, d->first[1], d->first[2]) ? 1 : 0));
    }
    if (row > 0) assert_int_equal(got.tokens[row - 1], 0x55555555);
    assert_int_equal(got.tokens[row + T], 0x55555555);
}

static void every_row_is_as_defined(void **state)
{
    (void)state;
    static const int64_t length[] = {1, 2, 3, 7, 16, 61};
    for (int seed = 0; seed < 20; seed++) {
        const Random r = random_named((uint64_t)seed, "files");
        const char *path[5];
        Stream s;
        write_files(&s, path, &r);
        for (int k = 0; k < 12; k++) {
            const DatasetSettings settings = {path, 5, FORMAT_AUTO, length[k % 6], k < 6, 60000, 1};
            Dataset d;
            DO(dataset_open(&settings, &arena, &d));
            assert_int_equal(d.n_tokens, s.n);
            assert_true(d.n_samples * length[k % 6] >= s.n - 1);
            assert_true((d.n_samples - 1) * length[k % 6] < s.n - 1);
            for (int64_t i = 0; i < d.n_samples; i++) check_sample(&d, &s, i, i % 3 * 2, i % 4 * 5);
            dataset_close(&d);
        }
    }
}

static Dataset open_text(int64_t seq_len, uint64_t seed)
{
    static const char *path[1];
    Dataset d;
    char text[1001];
    for (int i = 0; i < 1000; i++) text[i] = (char)('a' + i % 26);
    text[1000] = '\0';
    path[0] = scratch_text("order.txt", text);
    const DatasetSettings s = {path, 1, FORMAT_AUTO, seq_len, true, 256, seed};
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

/* How many places of two orders agree: about one, when they have nothing to do with each other. */
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

/* Steps of `batch` samples, each dealt out to the ranks there are at that time. */
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
    const DatasetSettings s = {&path, 1, format, 8, true, 60000, 1};
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
        cmocka_unit_test(every_row_is_as_defined),
        cmocka_unit_test(an_epoch_holds_each_sample_once),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(who_reads_changes_nothing),
        cmocka_unit_test(a_fingerprint_is_of_the_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
