/* Chunks of boxes, and a rank's file: the length of its header does not depend on the hashes, and
 * it contains everything that the manifest needs. */
#include <stdio.h>
#include "support/state_test.h"

/* Chunks in order are the box's row-major elements; none exceeds the limit. */
static void chunks(void **state)
{
    Dice dice = dice_of(3);
    const Box known = box2(0, 7, 0, 8);
    int64_t before;
    (void)state;
    assert_int_equal(chunk_count(&known, 20), 4);
    const Box third = chunk_at(&known, 20, 2, &before), rows = box2(4, 6, 0, 8);
    assert_box(&third, &rows);
    assert_int_equal(before, 32);
    for (int round = 0; round < 500; round++) {
        Box box = {.ndim = (int)roll(&dice, MAX_DIMS + 1)};
        for (int d = 0; d < box.ndim; d++) {
            box.lo[d] = roll(&dice, 5);
            box.hi[d] = box.lo[d] + 1 + roll(&dice, 6);
        }
        const int64_t most = 1 + roll(&dice, 40), n = chunk_count(&box, most);
        int64_t sum = 0;
        for (int64_t i = 0; i < n; i++) {
            const Box c = chunk_at(&box, most, i, &before);
            int64_t first = 0; /* row-major, of the chunk's first element */
            for (int d = 0; d < box.ndim; d++) {
                assert_true(c.lo[d] >= box.lo[d] && c.hi[d] <= box.hi[d] && c.lo[d] < c.hi[d]);
                first = first * (box.hi[d] - box.lo[d]) + c.lo[d] - box.lo[d];
            }
            assert_int_equal(before, sum);
            assert_int_equal(first, sum);
            /* contiguous: after its first dim of more than one, all dims are whole */
            int d = 0;
            while (d < box.ndim && c.hi[d] - c.lo[d] == 1) d++;
            for (d++; d < box.ndim; d++) assert_true(c.lo[d] == box.lo[d] && c.hi[d] == box.hi[d]);
            assert_true(box_count(&c) <= most);
            sum += box_count(&c);
        }
        assert_int_equal(sum, box_count(&box));
    }
    const Box none = box2(2, 2, 0, 5);
    assert_int_equal(chunk_count(&none, 4), 0);
}

static void round_trip(void **state)
{
    const StateTensors t = example_tensors();
    (void)state;
    for (int rank = 0; rank < EXAMPLE_RANKS; rank++) {
        const RankFile f = example_rank(&t, rank);
        RankFile g;
        const char *path = scratch("rank");
        example_write(&t, &f, path);
        DO(rank_file_read(path, &t, &arena, &g));
        assert_true(g.step == 20 && g.rank == rank && g.n == f.n && g.bytes == f.bytes &&
                    g.data_at == f.data_at && g.data_at % 64 == 0);
        for (int64_t i = 0; i < f.n; i++) {
            assert_true(f.part[i].tensor == g.part[i].tensor && f.part[i].at == g.part[i].at);
            assert_box(&f.part[i].box, &g.part[i].box);
            assert_int_equal(g.part[i].hash[0], f.part[i].hash[0]);
        }
    }
}

/* A part with many chunks and hashes: its layout is computed before they are known. */
static void chunked(void **state)
{
    StateTensor of = {"big", STATE_WEIGHT, F32, {2, {3, 1500000}}};
    const StateTensors t = {1, &of};
    ManifestPart part[2] = {{.box = box2(0, 2, 0, 1500000)}, {.box = box2(2, 3, 0, 1500000)}};
    RankFile f = {.step = 1, .n = 2, .part = part};
    const uint64_t hash[] = {1, 2, UINT64_MAX, 4, 5, 6};
    const char *head;
    size_t bytes;
    StFile st;
    (void)state;
    assert_int_equal(rank_file_part_chunks(&t, &part[0]), 4); /* two rows of two */
    DO(rank_file_layout(&t, &f, &arena));
    part[0].hash = hash, part[1].hash = hash + 4;
    DO(rank_file_header(&t, &f, &arena, &head, &bytes));
    assert_int_equal(bytes, f.data_at);
    assert_int_equal(f.bytes, f.data_at + 18000000);
    DO(st_parse("f", head, bytes, f.bytes, &arena, &st));
    assert_string_equal(st_meta(&st, "hashes"),
                        "0000000000000001 0000000000000002 ffffffffffffffff "
                        "0000000000000004 0000000000000005 0000000000000006");
    assert_non_null(st_find(&st, "big.weight@2,0"));
}

/* Headers made by hand that are not a rank's file of this job are refused. */
static void malformed(void **state)
{
    static const struct {
        const char *name, *key, *value, *says;
    } row[] = {
        {"bias.weight", 0, 0, "is not NAME.ROLE@ORIGIN"},
        {"bias@0", 0, 0, "is not NAME.ROLE@ORIGIN"},
        {"bias.wait@0", 0, 0, "has an unknown role"},
        {"bias.moment1@0", 0, 0, "is not a tensor of this job"},
        {"other.weight@0", 0, 0, "is not a tensor of this job"},
        {"bias.weight@3", 0, 0, "outside of its tensor"},
        {"bias.weight@-1", 0, 0, "outside of its tensor"},
        {"bias.weight@00", 0, 0, "has a malformed origin"},
        {"bias.weight@0,", 0, 0, "has a malformed origin"},
        {"bias.weight@0,0", 0, 0, "has a malformed origin"},
        {"layers.0.up.weight@0,0", 0, 0, "does not have the dims"},
        {"bias.weight@0", "format", "sheaf checkpoint 2", "its format is"},
        {"bias.weight@0", "step", "-1", "\"step\" of __metadata__"},
        {"bias.weight@0", "step", " 1", "\"step\" of __metadata__"},
        {"bias.weight@0", "rank", "1e3", "\"rank\" of __metadata__"},
        {"bias.weight@0", "chunk_bytes", "4096", "chunks of 4096 bytes"},
        {"bias.weight@0", "hashes", "", "are not 1 hashes"},
        {"bias.weight@0", "hashes", "0123456789ABCDEF", "hash 0 of __metadata__"},
        {"bias.weight@0", "hashes", "0123456789abcdef 0123456789abcdef", "are not 1 hashes"},
    };
    const StateTensors t = example_tensors();
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        StPair pair[] = {{"format", "sheaf checkpoint 1"},
                         {"step", "20"},
                         {"rank", "0"},
                         {"chunk_bytes", "4194304"},
                         {"hashes", "0123456789abcdef"}};
        StTensor x = {row[i].name, ST_F64, 1, {3}, 0, 24};
        const StFile f = {
            .path = "f", .n = 1, .tensor = &x, .n_pairs = 5, .pair = pair, .data_bytes = 24};
        for (int k = 0; row[i].key && k < 5; k++)
            if (strcmp(pair[k].key, row[i].key) == 0) pair[k].value = row[i].value;
        const char *head;
        size_t bytes;
        RankFile g;
        Buffer b = {0};
        DO(st_header(&f, &arena, &head, &bytes));
        buffer_raw(&b, head, bytes);
        for (int k = 0; k < 3; k++) buffer_put(&b, 0, 8);
        const char *path = scratch_write("strange", &b);
        buffer_free(&b);
        expect_error(row[i].name, rank_file_read(path, &t, &arena, &g), ERR_CHECK, row[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chunks, setup, teardown),
        cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(chunked, setup, teardown),
        cmocka_unit_test_setup_teardown(malformed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
