/* hf_folders.c -- reads golden folders element by element. */
#define _DEFAULT_SOURCE
#include "support/hf_folders.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "support/expect.h"

const char *const hf_folders[] = {"gpt2",  "gpt2_hub", "llama",     "llama_bf16", "mistral_f16",
                                  "qwen2", "qwen3",    "mixtral",   "qwen2_moe",  "qwen3_moe",
                                  "olmoe", "dots1",    "llama_fp8", NULL};

const char *hf_folder_path(const char *name, Arena *a)
{
    const char *path;
    Text t = text_in(a);
    text_add(&t, "%s%s", HF_GOLDEN, name);
    DO(text_done(&t, &path));
    return path;
}

void hf_folder_expected(const char *dir, Arena *a, HfExpected *out)
{
    char path[1024];
    json_error_t why;
    snprintf(path, sizeof path, "%s/expected.json", dir);
    json_t *o = json_load_file(path, 0, &why);
    if (!o) fail_msg("%s: %s", path, why.text);
    const json_t *tokens = json_object_get(o, "tokens"), *rows = json_object_get(o, "logits");
    out->T = (int64_t)json_array_size(tokens);
    out->vocab = (int64_t)json_array_size(json_array_get(rows, 0));
    assert_true(out->T > 5 && out->vocab > 5 && (int64_t)json_array_size(rows) == out->T);
    DO(ARENA_NEW(a, out->T, &out->token));
    DO(ARENA_NEW(a, out->T * out->vocab, &out->logit));
    for (int64_t t = 0; t < out->T; t++) {
        out->token[t] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)t));
        for (int64_t v = 0; v < out->vocab; v++)
            out->logit[t * out->vocab + v] =
                json_number_value(json_array_get(json_array_get(rows, (size_t)t), (size_t)v));
    }
    json_decref(o);
}

static double element(const unsigned char *at, StType type)
{
    uint32_t bits = 0;
    float x;
    if (type == ST_F8_E4M3) {
        const int e = at[0] >> 3 & 15, m = at[0] & 7;
        const double size = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        return at[0] & 0x80 ? -size : size;
    }
    if (type == ST_F16) {
        const int e = at[1] >> 2 & 31, m = (at[1] & 3) << 8 | at[0];
        const double size = e == 31 ? (double)INFINITY
                            : e     ? ldexp(1024 + m, e - 25)
                                    : ldexp(m, -24);
        return at[1] & 0x80 ? -size : size;
    }
    if (type == ST_BF16)
        bits = (uint32_t)at[1] << 24 | (uint32_t)at[0] << 16;
    else
        memcpy(&bits, at, sizeof bits);
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Finds a tensor with either prefix, in any file of the folder. */
static bool find(const char *dir, const char *name, Arena *a, StFile *file, StTensor *out)
{
    static const char *const prefix[] = {"", "transformer."};
    char path[1024], whole[256];
    bool found = false;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; !found && (e = readdir(d));) {
        if (!strstr(e->d_name, ".safetensors") || strstr(e->d_name, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        const char *kept;
        DO(arena_string(a, path, &kept));
        DO(st_read(kept, a, file));
        for (int i = 0; i < 2 && !found; i++) {
            snprintf(whole, sizeof whole, "%s%s", prefix[i], name);
            const StTensor *t = st_find(file, whole);
            if (t) *out = *t;
            found = t != NULL;
        }
    }
    closedir(d);
    return found;
}

static unsigned char *read_bytes(const StFile *file, const StTensor *t, Arena *a)
{
    unsigned char *data;
    DO(ARENA_NEW(a, t->bytes, &data));
    FILE *f = fopen(file->path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(file->data_at + t->at), SEEK_SET), 0);
    assert_int_equal(fread(data, 1, (size_t)t->bytes, f), t->bytes);
    fclose(f);
    return data;
}

/* Multiplies the elements of a tensor in 8 bits, whole and not transposed, by the scales of their
 * blocks of 8 x 16: those of llama_fp8. */
static void scale_blocks(const char *dir, const char *name, int64_t rows, int64_t columns, Arena *a,
                         double *x)
{
    char whole[256];
    StFile file;
    StTensor t = {0};
    snprintf(whole, sizeof whole, "%s_scale_inv", name);
    if (!find(dir, whole, a, &file, &t)) fail_msg("%s: no %s", dir, whole);
    assert_int_equal(t.n[0], (rows + 7) / 8);
    assert_int_equal(t.n[1], (columns + 15) / 16);
    const unsigned char *data = read_bytes(&file, &t, a);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            x[i * columns + j] =
                (double)((float)x[i * columns + j] *
                         (float)element(data + 4 * (i / 8 * t.n[1] + j / 16), ST_F32));
}

/* The elements of tensor i of the parameter. */
static void read_tensor(const char *dir, const ModelConfig *c, const Param *p, int64_t i, Arena *a,
                        double *out)
{
    const HfPlace place = hf_place(c, p, i);
    const int64_t columns = p->info.ndim > 1 ? p->info.n[p->info.ndim - 1] : 1;
    const int64_t count = p->count / hf_tensors(p);
    StFile file;
    StTensor t = {0};
    if (!find(dir, place.name, a, &file, &t)) fail_msg("%s: no %s", dir, place.name);
    const unsigned char *data = read_bytes(&file, &t, a);
    for (int64_t e = 0; e < count; e++)
        out[e] = element(
            data + hf_index(&place, p, e / columns, e % columns) * st_type_bytes(t.type), t.type);
    if (t.type == ST_F8_E4M3) scale_blocks(dir, place.name, count / columns, columns, a, out);
}

void hf_folder_weight(const char *dir, const ModelConfig *c, const Param *p, Arena *a, double *out)
{
    for (int64_t i = 0; i < hf_tensors(p); i++)
        read_tensor(dir, c, p, i, a, out + i * (p->count / hf_tensors(p)));
}

void hf_folder_copy(const char *dir, const char *to)
{
    char from[1024], path[1024], buffer[4096];
    DIR *d = opendir(dir);
    assert_non_null(d);
    mkdir(to, 0777); /* may exist */
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(from, sizeof from, "%s/%s", dir, e->d_name);
        snprintf(path, sizeof path, "%s/%s", to, e->d_name);
        FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
        assert_true(in && out);
        for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
            assert_int_equal(fwrite(buffer, 1, n, out), n);
        fclose(in);
        fclose(out);
    }
    closedir(d);
}
