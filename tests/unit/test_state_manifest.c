/* manifest.json: written and read back, every flipped bit detected, malicious ones refused, and
 * tilings distinguished from other sets of boxes. */
#include <stdio.h>
#include "support/state_test.h"

static void same_manifest(const Manifest *x, const Manifest *y)
{
    const StateScalars *s = &x->scalars, *t = &y->scalars;
    assert_true(s->step == t->step && s->cursor == t->cursor && s->tokens == t->tokens &&
                s->skipped == t->skipped && s->seed == t->seed && s->data == t->data &&
                s->seq_len == t->seq_len && s->batch == t->batch && s->pack == t->pack);
    assert_string_equal(s->optim, t->optim);
    assert_string_equal(s->dtype, t->dtype);
    assert_string_equal(s->device, t->device);
    assert_string_equal(s->kernels, t->kernels);
    assert_string_equal(s->config, t->config);
    assert_string_equal(s->model, t->model);
    assert_int_equal(x->tensors.n, y->tensors.n);
    for (int i = 0; i < x->tensors.n; i++) {
        const StateTensor *p = &x->tensors.tensor[i], *q = &y->tensors.tensor[i];
        assert_string_equal(p->name, q->name);
        assert_true(p->role == q->role && p->dtype == q->dtype);
        assert_int_equal(p->shape.ndim, q->shape.ndim);
        for (int d = 0; d < p->shape.ndim; d++) assert_int_equal(p->shape.n[d], q->shape.n[d]);
    }
    assert_int_equal(x->n_files, y->n_files);
    for (int i = 0; i < x->n_files; i++) {
        assert_string_equal(x->file[i].name, y->file[i].name);
        assert_true(x->file[i].bytes == y->file[i].bytes &&
                    x->file[i].header_hash == y->file[i].header_hash);
    }
    assert_int_equal(x->n_parts, y->n_parts);
    for (int64_t i = 0; i < x->n_parts; i++) {
        const ManifestPart *p = &x->part[i], *q = &y->part[i];
        assert_true(p->tensor == q->tensor && p->file == q->file && p->at == q->at);
        assert_box(&p->box, &q->box);
        assert_int_equal(p->hash[0], q->hash[0]);
    }
}

static void round_trip(void **state)
{
    const Manifest m = example_manifest();
    Manifest again;
    const char *text;
    size_t bytes;
    (void)state;
    DO(manifest_text(&m, &arena, &text, &bytes));
    assert_int_equal(strlen(text), bytes);
    DO(manifest_parse("step-00000020", text, bytes, &arena, &again));
    same_manifest(&m, &again);
    assert_string_equal(again.dir, "step-00000020");
    const char *second;
    DO(manifest_text(&again, &arena, &second, &bytes));
    expect_text("again", second, text);
}

static void flipped(void **state)
{
    const Manifest m = example_manifest();
    Manifest again;
    const char *text;
    size_t bytes;
    (void)state;
    DO(manifest_text(&m, &arena, &text, &bytes));
    char *copy = malloc(bytes);
    for (size_t i = 0; i < 8 * bytes; i++) {
        const size_t mark = arena_mark(&arena);
        memcpy(copy, text, bytes);
        copy[i / 8] = (char)(copy[i / 8] ^ 1 << i % 8);
        expect_error("flipped", manifest_parse("step-00000020", copy, bytes, &arena, &again),
                     ERR_CHECK, "damaged");
        arena_rewind(&arena, mark);
    }
    for (size_t n = 0; n < bytes; n++)
        expect_error("cut", manifest_parse("d", text, n, &arena, &again), ERR_CHECK, "damaged");
    free(copy);
}

/* ---- malicious: the text with a replacement, under a correct hash ---- */

static Err parse_replaced(const char *text, const char *from, const char *to)
{
    Manifest m;
    char digits[HASH_DIGITS + 1] = "";
    const char *at = strstr(text, from), *made;
    const size_t body = strlen(text) - strlen("\"hash\": \"0123456789abcdef\"\n}\n");
    if (!at) fail_msg("the text has no %s", from);
    Text t = text_in(&arena);
    text_add(&t, "%.*s%s%.*s", (int)(at - text), text, to,
             (int)(text + body - at - (int)strlen(from)), at + strlen(from));
    hash_digits(hash_bytes(t.at, t.length), digits);
    text_add(&t, "\"hash\": \"%s\"\n}\n", digits);
    const size_t bytes = t.length;
    DO(text_done(&t, &made));
    return manifest_parse("d", made, bytes, &arena, &m);
}

static void hostile(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } row[] = {
        {"\"format\": \"sheaf checkpoint\"", "\"format\": \"other\"", "its format"},
        {"\"step\": 20", "\"step\": 20, \"step\": 20", "duplicate"},
        {"\"step\": 20,", "", "no \"step\""},
        {"\"step\": 20", "\"step\": 20, \"steps\": 2", "has a \"steps\""},
        {"\"step\": 20", "\"step\": -1", "\"step\" is no count"},
        {"\"step\": 20", "\"step\": 20.0", "\"step\" is no count"},
        {"\"step\": 20", "\"step\": 9223372036854775808", "too big integer"},
        {"\"skipped\": 2", "\"skipped\": 21", "21 skipped updates of 20"},
        {"fedcba9876543210", "FEDCBA9876543210", "\"seed\" is not"},
        {"fedcba9876543210", "fedcba987654321", "\"seed\" is not"},
        {"\"pack\": true", "\"pack\": 1", "\"pack\""},
        {"\"optim\": \"adamw\"", "\"optim\": null", "\"optim\" is no text"},
        {"\"chunk_bytes\": 4194304", "\"chunk_bytes\": 1", "chunks of 1 bytes"},
        {"\"role\": \"moment2\"", "\"role\": \"moment3\"", "tensor 2: its role"},
        {"\"role\": \"moment2\"", "\"role\": \"moment1\"", "is listed twice"},
        {"\"dtype\": \"f64\"", "\"dtype\": \"bf16\"", "tensor 3: its dtype"},
        {"\"shape\": [12, 8]", "\"shape\": [4611686018427387904, 8]", "more bytes than 2^63"},
        {"\"shape\": [12, 8]", "\"shape\": [1, 2, 3, 4, 5, 6]", "tensor 0: its shape"},
        {"\"shape\": [12, 8]", "\"shape\": [12, 9]", "in no part"},
        {"\"shape\": [12, 8]", "\"shape\": [[12], 8]", "5 deep"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"../rank-00000.safetensors\"",
         "file 0: its name is not plain"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"..\"", "file 0: its name"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"\"", "file 0: its name"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"/etc/passwd\"", "file 0: its name"},
        {"\"name\": \"rank-00000.safetensors\"", "\"name\": \"rank-00001.safetensors\"",
         "file 1: names"},
        {"\"tensor\": 3, \"file\": 1", "\"tensor\": 4, \"file\": 1", "that does not exist"},
        {"\"tensor\": 3, \"file\": 1", "\"tensor\": 3, \"file\": 2", "that does not exist"},
        {"\"tensor\": 3, \"file\": 1", "\"tensor\": 3, \"file\": 0", "overlap at byte"},
        {"\"lo\": [0, 0], \"hi\": [7, 8]", "\"lo\": [0, 0], \"hi\": [0, 8]", "part 0: its box"},
        {"\"lo\": [0, 0], \"hi\": [7, 8]", "\"lo\": [0, 0], \"hi\": [13, 8]", "part 0: its box"},
        {"\"lo\": [0, 0], \"hi\": [7, 8]", "\"lo\": [0], \"hi\": [7, 8]", "part 0: lo or hi"},
        {"\"lo\": [0, 0], \"hi\": [7, 8]", "\"lo\": [1, 0], \"hi\": [8, 8]",
         "element (0, 0) of the weight of layers.0.up is in no part"},
        {"\"lo\": [7, 0], \"hi\": [8, 4]", "\"lo\": [6, 0], \"hi\": [7, 4]",
         "element (6, 0) of the weight of layers.0.up is in more than one part"},
        {"\"lo\": [7, 0], \"hi\": [8, 4]", "\"lo\": [7, 0], \"hi\": [8, 5]",
         "element (7, 4) of the weight of layers.0.up is in more than one part"},
        {"\"at\": ", "\"at\": 1", "ends past the end"},
        {"\"at\": 832", "\"at\": 1500", "part 0: ends past the end"},
        {"\"hashes\": \"", "\"hashes\": \"0123456789abcdef ", "one hash for each"},
        {"\"hashes\": \"", "\"hashes\": \"0123456789abcdef", "one hash for each"},
        {"\"tensors\": [", "\"tensors\": 7, \"x\": [", "has a \"x\""},
        {"\"parts\": [", "\"parts\": [null,", "a part is not an object"},
    };
    const Manifest m = example_manifest();
    const char *text;
    size_t bytes;
    (void)state;
    DO(manifest_text(&m, &arena, &text, &bytes));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect_error(row[i].to, parse_replaced(text, row[i].from, row[i].to), ERR_CHECK,
                     row[i].says);
    /* Undamaged, but another version. */
    expect_error("version", parse_replaced(text, "\"version\": 1", "\"version\": 2"), ERR_CONFIG,
                 "has version 2, and this program reads version 1");
    DO(parse_replaced(text, "\"step\": 20", "\"step\": 21"));
}

/* Parts that overlap in a file, leave a hole, or do not reach its end. */
static void places(void **state)
{
    Manifest m = example_manifest();
    (void)state;
    DO(manifest_check(&m, &arena));
    m.file[0].bytes += 8;
    expect_error("end", manifest_check(&m, &arena), ERR_CHECK, "end at byte");
    m = example_manifest();
    for (int64_t i = 0; i < m.n_parts; i++)
        if (m.part[i].tensor == 1) m.part[i].at += 4;
    expect_error("hole", manifest_check(&m, &arena), ERR_CHECK, "leave a hole");
    m = example_manifest();
    for (int64_t i = 0; i < m.n_parts; i++)
        if (m.part[i].tensor == 1) m.part[i].at -= 4;
    expect_error("overlap", manifest_check(&m, &arena), ERR_CHECK, "overlap");
    m = example_manifest();
    for (int64_t i = 0; i < m.n_parts; i++) m.part[i].at += 200000000;
    for (int i = 0; i < m.n_files; i++) m.file[i].bytes += 200000000;
    expect_error("header", manifest_check(&m, &arena), ERR_CHECK, "no header is that long");
}

/* ---- tilings ---- */

/* Splits the box at random places into about n boxes. */
static void cut(Dice *dice, const Box *box, int64_t n, BoxList *out)
{
    const int d = (int)roll(dice, box->ndim);
    const int64_t extent = box->hi[d] - box->lo[d];
    if (n <= 1 || extent < 2) {
        DO(boxes_push(out, box));
        return;
    }
    Box a = *box, b = *box;
    a.hi[d] = b.lo[d] = box->lo[d] + 1 + roll(dice, extent - 1);
    cut(dice, &a, n / 2, out);
    cut(dice, &b, n - n / 2, out);
}

/* A manifest of one tensor in these boxes, in one file. */
static Manifest tiled(const Shape *shape, const BoxList *l)
{
    static StateTensor t;
    static ManifestFile file = {.name = "f"};
    t = (StateTensor){"w", STATE_WEIGHT, F32, *shape};
    Manifest m = {.dir = "d", .tensors = {1, &t}, .n_files = 1, .file = &file, .n_parts = l->n};
    int64_t at = 64;
    DO(ARENA_NEW(&arena, l->n, &m.part));
    for (int64_t i = 0; i < l->n; i++) m.part[i].box = l->box[i];
    qsort(m.part, (size_t)m.n_parts, sizeof *m.part, manifest_part_order);
    for (int64_t i = 0; i < l->n; i++) {
        m.part[i].at = at;
        at += rank_file_part_bytes(&m.tensors, &m.part[i]);
    }
    file.bytes = at;
    return m;
}

static Err check(const Shape *shape, const BoxList *l)
{
    const Manifest m = tiled(shape, l);
    return manifest_check(&m, &arena);
}

static void tilings(void **state)
{
    Dice dice = dice_of(11);
    (void)state;
    for (int round = 0; round < 200; round++) {
        Shape s = {.ndim = 1 + (int)roll(&dice, MAX_DIMS)};
        Box whole = {.ndim = s.ndim};
        BoxList l = {.arena = &arena};
        for (int d = 0; d < s.ndim; d++) whole.hi[d] = s.n[d] = 2 + roll(&dice, 9);
        cut(&dice, &whole, 2 + roll(&dice, 30), &l);
        DO(check(&s, &l));
        const int64_t i = roll(&dice, l.n);
        const Box was = l.box[i];
        DO(boxes_push(&l, &was));
        expect_error("duplicated", check(&s, &l), ERR_CHECK, "more than one part");
        l.n--;
        if (l.n > 1) {
            l.box[i] = l.box[l.n - 1];
            l.n--;
            expect_error("missing", check(&s, &l), ERR_CHECK, "in no part");
            l.box[l.n++] = was;
        }
        const int d = (int)roll(&dice, s.ndim); /* moved by one, if possible */
        Box *b = &l.box[l.n - 1];
        const int64_t by = b->hi[d] < s.n[d] ? 1 : b->lo[d] > 0 ? -1 : 0;
        if (by) {
            b->lo[d] += by, b->hi[d] += by;
            expect_error("moved", check(&s, &l), ERR_CHECK, " part");
        }
        arena_rewind(&arena, 0);
    }
}

/* Boxes that no straight cut separates; boxes whose volumes add up although two overlap; an empty
 * tensor; a scalar. */
static void odd_tilings(void **state)
{
    Box wheel[] = {box2(0, 1, 0, 2), box2(0, 2, 2, 3), box2(2, 3, 1, 3), box2(1, 3, 0, 1),
                   box2(1, 2, 1, 2)};
    const Shape square = {2, {3, 3}}, empty = {2, {0, 3}}, scalar = {0, {0}};
    BoxList l = {.box = wheel, .n = 5};
    (void)state;
    DO(check(&square, &l));
    l.n = 4;
    expect_error("no hub", check(&square, &l), ERR_CHECK, "element (1, 1)");
    l.n = 5;
    wheel[4] = box2(0, 1, 1, 2);
    expect_error("as many elements", check(&square, &l), ERR_CHECK,
                 "element (0, 1) of the weight of w is in more than one part");
    Box one = {.ndim = 0};
    l = (BoxList){.box = &one, .n = 1};
    DO(check(&scalar, &l));
    l.n = 0;
    Manifest m = tiled(&empty, &l);
    m.n_files = 0;
    DO(manifest_check(&m, &arena));
    m = tiled(&scalar, &l);
    m.n_files = 0;
    expect_error("no scalar", manifest_check(&m, &arena), ERR_CHECK, "in no part");
}

/* A hundred thousand boxes; five billion pairs would be too many to compare. */
static void many(void **state)
{
    enum { N = 100000 };
    const Shape s = {2, {3, N}};
    BoxList l = {.arena = &arena};
    (void)state;
    for (int64_t i = 0; i < N; i++) {
        const Box b = box2(0, 3, i, i + 1);
        DO(boxes_push(&l, &b));
    }
    DO(check(&s, &l));
    l.box[N / 2].hi[0] = 2;
    expect_error("one short", check(&s, &l), ERR_CHECK, "element (2, 50000)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(flipped, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile, setup, teardown),
        cmocka_unit_test_setup_teardown(places, setup, teardown),
        cmocka_unit_test_setup_teardown(tilings, setup, teardown),
        cmocka_unit_test_setup_teardown(odd_tilings, setup, teardown),
        cmocka_unit_test_setup_teardown(many, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
