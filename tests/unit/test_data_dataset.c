/* test_data_dataset.c -- checks every row of samples against a definition that considers each
 * token separately. */
#include "data/dataset.h"
#include "support/data_test.h"
#include "layout/tokens.h"

enum { MAX_STREAM = 512, MOST_ROWS = 128, EOT = 50256 };

/* The expected stream, recorded token by token while the files are written. */
typedef struct {
    int64_t id[MAX_STREAM];
    int document[MAX_STREAM]; /* of each token */
    int n, n_documents;
} Stream;

static void stream_add(Stream *s, int64_t id, bool starts)
{
    if (starts) s->n_documents++;
    s->document[s->n] = s->n_documents;
    s->id[s->n++] = id;
}

/* Writes JSONL, an llm.c file, an empty text, a Megatron pair and a text: documents of 0 to
 * 9 tokens. */
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
    bool pending = false;          /* a document has started but has no token yet */
    for (int q = 0; q < 30; q++) { /* sequences, some of which start a document */
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
    int32_t tokens[MOST_ROWS], targets[MOST_ROWS], positions[MOST_ROWS], ranges[MOST_ROWS][4];
    float weights[MOST_ROWS];
    double weights_f64[MOST_ROWS];
} Rows;

static InputRows inputs(Rows *r, DType type)
{
    return (InputRows){r->tokens,
                       r->targets,
                       r->positions,
                       &r->ranges[0][0],
                       type == F64 ? (void *)r->weights_f64 : (void *)r->weights,
                       type,
                       NULL};
}

static bool sees(const Stream *s, bool pack, int64_t window, int64_t query, int64_t key)
{
    return key <= query && (!pack || s->document[key] == s->document[query]) &&
           (window == 0 || query - key < window);
}

/* True if the target of token g has weight 1. In llm.c's file (tokens from..to) an end-of-text
 * target ends the document before it. */
static bool counts(const Stream *s, bool pack, int64_t g, int64_t from, int64_t to)
{
    const bool ends = g >= from && g < to && s->id[g + 1] == EOT;
    return !pack || s->document[g] == s->document[g + 1] || ends;
}

/* Each part of a token map has the rows of the whole, and nothing after them is written. Ranges are
 * whole in every second part, as for attention by heads. */
static void check_parts(const Dataset *d, int64_t sample, int64_t window, int64_t row,
                        const Rows *whole)
{
    enum { PARTS = 3 };
    const int64_t start[] = {0, row, row + d->settings.seq_len};
    static Arena a;
    const SpanMap *map;
    DO(arena_open(&a, "parts", (size_t)1 << 20));
    DO(tokens_by_document(&a, (TokenMap)(1 + sample % 3), start, 2, PARTS, &map));
    for (int p = 0; p < PARTS; p++) {
        HeldSpans held[N_INPUTS];
        Rows got;
        memset(&got, 0x55, sizeof got);
        InputRows in = inputs(&got, sample % 2 ? F64 : F32);
        for (int i = 0; i < N_INPUTS; i++) held[i] = held_map(map, p);
        if (p % 2) held[INPUT_RANGES] = held_all(row + d->settings.seq_len);
        in.held = held;
        DO(dataset_fill(d, sample, window, &in, row));
        const int64_t n = held[0].count;
        for (int64_t i = held_below(&held[0], row); i < n; i++) {
            const int64_t r = held_at(&held[0], i);
            assert_int_equal(got.tokens[i], whole->tokens[r]);
            assert_int_equal(got.targets[i], whole->targets[r]);
            assert_int_equal(got.positions[i], whole->positions[r]);
            assert_memory_equal(&got.weights[i], &whole->weights[r], sizeof *got.weights);
            assert_memory_equal(&got.weights_f64[i], &whole->weights_f64[r], sizeof(double));
            assert_memory_equal(got.ranges[p % 2 ? r : i], whole->ranges[r],
                                sizeof whole->ranges[r]);
        }
        assert_true(got.tokens[n] == 0x55555555 && got.targets[n] == 0x55555555);
        assert_true(got.positions[n] == 0x55555555);
        assert_int_equal(got.ranges[held[INPUT_RANGES].count][0], 0x55555555);
        assert_memory_equal(&got.weights[n], &whole->weights[MOST_ROWS - 1], sizeof *got.weights);
    }
    arena_close(&a);
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
        int64_t first = i; /* first row of this row's document in the sample */
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
    check_parts(d, sample, window, row, &got);
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
            const DatasetSettings settings = {path, 5,    FORMAT_AUTO, length[k % 6], k < 6, 60000,
                                              1,    NULL, 0,           NULL,          NULL};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_as_defined),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
