/* state_test.h -- shared by tests of checkpoint files: an arena, random numbers, and a small
 * checkpoint described in memory. */
#ifndef SUPPORT_STATE_TEST_H
#define SUPPORT_STATE_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include "support/expect.h"
#include "support/bytes.h"
#include "base/philox.h"
#include "state/hash.h"
#include "state/rank_file.h"
#include "state/safetensors.h"

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

typedef struct {
    Random random;
    uint64_t next;
} Dice;

/* Returns a number from 0 to n - 1. */
static inline int64_t roll(Dice *d, int64_t n)
{
    return (int64_t)(random_bits(&d->random, d->next++) % (uint64_t)n);
}

static inline Dice dice_of(uint64_t seed) { return (Dice){.random = random_named(seed, "state")}; }

static const StateScalars example_scalars = {
    .step = 20,
    .cursor = 161,
    .tokens = 10243,
    .skipped = 2,
    .seed = 0xFEDCBA9876543210u,
    .data = 0x0123456789ABCDEFu,
    .seq_len = 65,
    .batch = 8,
    .pack = true,
    .optim = "adamw",
    .dtype = "bf16",
    .device = "cpu avx512",
    .kernels = "",
    .config = "model:\n  name: \"t\\u00e4st\"\n",
    .model = "{\"model_type\": \"llama\"}",
};

static inline Box box2(int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    return (Box){.ndim = 2, .lo = {r0, c0}, .hi = {r1, c1}};
}

static inline void assert_box(const Box *a, const Box *b)
{
    assert_int_equal(a->ndim, b->ndim);
    for (int d = 0; d < a->ndim; d++) assert_true(a->lo[d] == b->lo[d] && a->hi[d] == b->hi[d]);
}

/* "up" [12, 8] with its moments, "bias" [5]; on two ranks, sharded as with zero=1:
 *
 *     rank 0: rows 0..6 and half of row 7; bias 0..1      rank 1: the rest of both */
enum { EXAMPLE_TENSORS = 4, EXAMPLE_RANKS = 2 };

static inline StateTensors example_tensors(void)
{
    static StateTensor t[EXAMPLE_TENSORS] = {
        {"layers.0.up", STATE_WEIGHT, F32, {2, {12, 8}}},
        {"layers.0.up", STATE_MOMENT1, F32, {2, {12, 8}}},
        {"layers.0.up", STATE_MOMENT2, F32, {2, {12, 8}}},
        {"bias", STATE_WEIGHT, F64, {1, {5}}},
    };
    return (StateTensors){EXAMPLE_TENSORS, t};
}

/* The data of a part: element k, row-major, of tensor t is 1000 t + k + 1/4. */
static inline void example_data(const StateTensors *t, const ManifestPart *p, Buffer *out)
{
    const StateTensor *of = &t->tensor[p->tensor];
    const int64_t n = box_count(&p->box);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, k = 0, stride = 1;
        for (int d = p->box.ndim - 1; d >= 0; d--) {
            const int64_t extent = p->box.hi[d] - p->box.lo[d];
            k += (p->box.lo[d] + rest % extent) * stride;
            rest /= extent;
            stride *= of->shape.n[d];
        }
        const double x = (double)(1000 * p->tensor + k) + 0.25;
        const float narrow = (float)x;
        if (of->dtype == F64)
            buffer_raw(out, &x, sizeof x);
        else
            buffer_raw(out, &narrow, sizeof narrow);
    }
}

/* Returns a rank's file with its layout and hashes, one per part. */
static inline RankFile example_rank(const StateTensors *t, int rank)
{
    RankFile f = {.step = example_scalars.step, .rank = rank};
    uint64_t *hash;
    const Box up[2][2] = {{box2(0, 7, 0, 8), box2(7, 8, 0, 4)},
                          {box2(7, 8, 4, 8), box2(8, 12, 0, 8)}};
    DO(ARENA_NEW(&arena, 7, &f.part));
    DO(ARENA_NEW(&arena, 7, &hash));
    for (int i = 0; i < 6; i++)
        f.part[f.n++] = (ManifestPart){i / 2, rank, up[rank][i % 2], 0, 0, NULL};
    f.part[f.n++] = (ManifestPart){3, rank, {1, {rank ? 2 : 0}, {rank ? 5 : 2}, {0}}, 0, 0, NULL};
    DO(rank_file_layout(t, &f, &arena));
    for (int64_t i = 0; i < f.n; i++) {
        Buffer b = {0};
        assert_int_equal(rank_file_part_chunks(t, &f.part[i]), 1);
        example_data(t, &f.part[i], &b);
        hash[i] = hash_bytes(b.at, b.bytes);
        f.part[i].hash = &hash[i];
        buffer_free(&b);
    }
    return f;
}

static inline Manifest example_manifest(void)
{
    Manifest m = {.dir = "step-00000020", .scalars = example_scalars, .n_files = EXAMPLE_RANKS};
    char name[RANK_FILE_NAME_BYTES];
    m.tensors = example_tensors();
    DO(ARENA_NEW(&arena, EXAMPLE_RANKS, &m.file));
    DO(ARENA_NEW(&arena, 14, &m.part));
    for (int rank = 0; rank < EXAMPLE_RANKS; rank++) {
        const RankFile f = example_rank(&m.tensors, rank);
        rank_file_name(rank, name);
        DO(arena_string(&arena, name, &m.file[rank].name));
        m.file[rank].bytes = f.bytes;
        m.file[rank].header_hash = 0x1111u * (unsigned)(rank + 1);
        memcpy(m.part + m.n_parts, f.part, (size_t)f.n * sizeof *f.part);
        m.n_parts += f.n;
    }
    qsort(m.part, (size_t)m.n_parts, sizeof *m.part, manifest_part_order);
    return m;
}

/* Writes the rank's file. */
static inline void example_write(const StateTensors *t, const RankFile *f, const char *path)
{
    const char *head;
    size_t bytes;
    Buffer b = {0};
    DO(rank_file_header(t, f, &arena, &head, &bytes));
    buffer_raw(&b, head, bytes);
    for (int64_t i = 0; i < f->n; i++) example_data(t, &f->part[i], &b);
    assert_int_equal(b.bytes, f->bytes);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b.at, 1, b.bytes, file), b.bytes);
    fclose(file);
    buffer_free(&b);
}

#endif
