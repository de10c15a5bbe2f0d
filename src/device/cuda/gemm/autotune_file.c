/* autotune_file.c -- saves and loads the autotuner's table as text, one line per shape.
 *
 *     sheaf autotune 6
 *     cuBLASLt 130000 on NVIDIA H200 of 132 multiprocessors
 *     2304 65536 768 768 768 2304 1 0 2 2 1 0 16 16 16 0 0 0 0 : 0 : 0000000000000042 ...
 *     attention 0 1 65536 65536 12 12 64 1024 2 : 1
 *
 * A line of attention holds the members of AttentionKey and the AttentionKernels. Another line
 * holds the members of LtShape, the GemmFusion and the algorithm. The algorithm is cuBLASLt's
 * opaque 64 bytes, eight words, which are valid only for this version and card; therefore the head
 * must match. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/gemm/autotune.h"

enum { WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

static Err head_of(const DeviceContext *c, char *head, size_t bytes)
{
    struct cudaDeviceProp card;
    CUDA_TRY(cudaGetDeviceProperties(&card, c->ordinal));
    snprintf(head, bytes, "sheaf autotune %d\ncuBLASLt %zu on %s of %d multiprocessors\n",
             AUTOTUNE_VERSION, cublasLtGetVersion(), card.name, c->sms);
    return OK;
}

static void write_attention(FILE *f, const AttentionEntry *entry)
{
    int64_t number[ATTENTION_NUMBERS];
    memcpy(number, &entry->shape, sizeof number);
    fputs("attention ", f);
    for (int k = 0; k < ATTENTION_NUMBERS; k++) fprintf(f, "%" PRId64 " ", number[k]);
    fprintf(f, ": %d\n", (int)entry->by);
}

Err cuda_autotune_save(DeviceContext *c, const char *path)
{
    char head[512];
    TRY(head_of(c, head, sizeof head));
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written", path);
    fputs(head, f);
    for (int i = 0; i < c->autotuner->n; i++) {
        const GemmEntry *entry = &c->autotuner->entry[i];
        int64_t number[LT_SHAPE_NUMBERS];
        uint64_t word[WORDS];
        if (!entry->possible) continue;
        memcpy(number, &entry->shape, sizeof number);
        memcpy(word, &entry->algo, sizeof word);
        for (int k = 0; k < LT_SHAPE_NUMBERS; k++) fprintf(f, "%" PRId64 " ", number[k]);
        fprintf(f, ": %d :", (int)entry->fusion);
        for (int k = 0; k < WORDS; k++) fprintf(f, " %016" PRIx64, word[k]);
        fputc('\n', f);
    }
    for (int i = 0; i < c->autotuner->attention.n; i++)
        write_attention(f, &c->autotuner->attention.entry[i]);
    const bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad)
        return err_fail(ERR_IO, "%s: writing failed; is the disk full?", path);
    return OK;
}

static bool read_line(FILE *f, LtShape *shape, GemmFusion *fusion, cublasLtMatmulAlgo_t *algo)
{
    int64_t number[LT_SHAPE_NUMBERS];
    uint64_t word[WORDS];
    int w;
    for (int k = 0; k < LT_SHAPE_NUMBERS; k++)
        if (fscanf(f, "%" SCNd64, &number[k]) != 1) return false;
    if (fscanf(f, " : %d :", &w) != 1 || w < FUSION_UNDECIDED || w > FUSION_PINGPONG) return false;
    *fusion = (GemmFusion)w;
    for (int k = 0; k < WORDS; k++)
        if (fscanf(f, "%" SCNx64, &word[k]) != 1) return false;
    if (fgetc(f) != '\n') return false; /* the last word may be truncated */
    memcpy(shape, number, sizeof *shape);
    memcpy(algo, word, sizeof *algo);
    return true;
}

static bool read_attention(FILE *f, AttentionKey *shape, AttentionKernels *by)
{
    int64_t number[ATTENTION_NUMBERS];
    int w, read = 0;
    if (fscanf(f, "attention%n", &read) == EOF || read == 0) return false;
    for (int k = 0; k < ATTENTION_NUMBERS; k++)
        if (fscanf(f, "%" SCNd64, &number[k]) != 1) return false;
    if (fscanf(f, " : %d", &w) != 1 || w <= BY_ANY || w >= N_ATTENTION_KERNELS) return false;
    if (fgetc(f) != '\n') return false;
    memcpy(shape, number, sizeof *shape);
    *by = (AttentionKernels)w;
    return true;
}

static Err load_line(Autotuner *all, const char *path, FILE *f, int first)
{
    LtShape shape;
    cublasLtMatmulAlgo_t algo;
    GemmFusion fusion;
    AttentionKey attention;
    AttentionKernels by;
    if (first == 'a' && read_attention(f, &attention, &by))
        return attention_choice_put(&all->attention, &attention, by);
    if (first != 'a' && read_line(f, &shape, &fusion, &algo))
        return autotuner_put(all, &shape, fusion, &algo);
    return err_fail(ERR_CONFIG, "%s: a line is truncated or malformed; remove the file", path);
}

static Err load(DeviceContext *c, const char *path, FILE *f, const char *head)
{
    char first[512] = "";
    const size_t n = fread(first, 1, strlen(head), f);
    if (n != strlen(head) || memcmp(first, head, n) != 0)
        return err_fail(
            ERR_CONFIG,
            "%s: written for another cuBLASLt, GPU or version: it begins \"%.80s\", but this "
            "program writes \"%.80s\"; remove it, and all GEMM shapes are measured again",
            path, first, head);
    for (int next = fgetc(f); next != EOF; next = fgetc(f)) {
        (void)ungetc(next, f);
        TRY(load_line(c->autotuner, path, f, next));
    }
    return OK;
}

Err cuda_autotune_load(DeviceContext *c, const char *path)
{
    char head[512];
    TRY(head_of(c, head, sizeof head));
    FILE *f = fopen(path, "r");
    if (!f) return err_fail(ERR_IO, "%s: cannot be read", path);
    const Err err = load(c, path, f, head);
    fclose(f);
    c->epoch++;
    return err;
}
