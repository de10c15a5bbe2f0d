/* test_hf_read.c -- reads folders of transformers under many layouts: every element equals
 * the file's to the bit, moments are 0, and each byte is read once. Invalid folders are
 * refused by name. */
#define _DEFAULT_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/hf_folders.h"
#include "support/states.h"

typedef struct {
    const char *dir;
    const ModelConfig *config;
    StateWhole whole;
    int64_t read[8];
} Loading;

static Err load(StateRank *r, void *work)
{
    Loading *x = work;
    Manifest m;
    LoadResult result;
    TRY(hf_open(x->dir, x->config, F32, r->world->arena, &m));
    assert_true(manifest_is_weights(&m));
    const LoadSettings set = {.manifest = &m,
                              .scope = LOAD_WEIGHTS,
                              .rank = &r->rank,
                              .comm = r->world->comm,
                              .all = r->world->all,
                              .temp = r->world->arena};
    TRY(world_agree(r->world, state_load(&set, &result)));
    x->read[r->world->rank] = result.read_bytes;
    return state_collect(r, &x->whole);
}

static void compare(const Loading *x, const StateWorld *w)
{
    const Model *model = &w->job[0].model;
    int64_t once = 0, read = 0;
    for (int i = 0; i < x->whole.tensors.n; i++) {
        const StateTensor *t = &x->whole.tensors.tensor[i];
        const int64_t n = shape_count(&t->shape);
        const Param *p = &model->param[model_find_param(model, t->name)];
        double *want = calloc((size_t)n, sizeof *want);
        Arena temp;
        DO(arena_open(&temp, "weight", ARENA_PLENTY));
        if (t->role == STATE_WEIGHT) hf_folder_weight(x->dir, x->config, p, &temp, want);
        for (int64_t e = 0; e < n; e++) {
            float got, should = (float)want[e];
            memcpy(&got, x->whole.data[i] + 4 * e, sizeof got);
            if (!x->whole.known[i][e] || memcmp(&got, &should, sizeof got) != 0)
                fail_msg("%s, %s: %s of %s [%lld] is %.9g, not %.9g", x->dir, w->words,
                         state_role_name(t->role), t->name, (long long)e, (double)got, want[e]);
        }
        if (t->role == STATE_WEIGHT) once += 4 * n;
        free(want);
        arena_close(&temp);
    }
    for (int r = 0; r < w->ranks; r++) read += x->read[r];
    assert_int_equal(read, once);
}

static void under_all_layouts(void **state)
{
    (void)state;
    static const char *const words[] = {"",  "tp=2", "pp=2", "dp=2 zero=3", "pp=2 tp=3 zero=0",
                                        NULL};
    for (int i = 0; hf_folders[i]; i++)
        for (int k = 0; words[k]; k++) {
            static Loading x;
            StateWorld w;
            Arena arena;
            ModelConfig config;
            DO(arena_open(&arena, "folder", ARENA_PLENTY));
            x = (Loading){.dir = hf_folder_path(hf_folders[i], &arena), .config = &config};
            DO(model_config_inference(x.dir, &arena, &config));
            state_world_open_as(&w,
                                &(StateSpec){.words = words[k], .dtype = F32, .config = &config});
            state_whole_open(&x.whole, &w);
            if (state_world_run(&w, load, &x) != OK) fail_msg("%s: %s", x.dir, err_text());
            compare(&x, &w);
            state_whole_close(&x.whole);
            state_world_close(&w);
            arena_close(&arena);
        }
}

/* ---- refused folders ---- */

/* A tensor that is renamed, removed, or has another type, shape or values. */
typedef struct {
    const char *folder, *tensor;
    const char *name; /* new name; NULL: removed */
    StType type;      /* new type and shape */
    int64_t shape[2];
    bool values;
    const char *says;
} Damage;

static void put_file(const char *path, const char *head, size_t bytes, const char *data, int64_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, bytes, f), bytes);
    assert_int_equal(fwrite(data, 1, (size_t)n, f), n);
    fclose(f);
}

/* Rewrites model.safetensors with the damage. */
static void apply(const Damage *d, const char *dir, Arena *a)
{
    char path[300];
    StFile f;
    char *data;
    const char *head;
    size_t bytes;
    int64_t at = 0;
    int kept = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    DO(st_read(path, a, &f));
    DO(ARENA_NEW(a, f.data_bytes, &data));
    FILE *in = fopen(path, "rb");
    for (int i = 0; i < f.n; i++) {
        StTensor t = f.tensor[i];
        const bool hit = strcmp(t.name, d->tensor) == 0;
        fseek(in, (long)(f.data_at + t.at), SEEK_SET);
        assert_int_equal(fread(data + at, 1, (size_t)t.bytes, in), t.bytes);
        if (hit && !d->name) continue;
        if (hit) t.name = d->name;
        if (hit && d->shape[0]) {
            t.type = d->type;
            t.ndim = 2;
            memcpy(t.n, d->shape, sizeof d->shape);
        }
        if (hit && d->values) data[at] ^= 1;
        t.at = at;
        at += t.bytes;
        f.tensor[kept++] = t;
    }
    fclose(in);
    f.n = kept;
    f.data_bytes = at;
    DO(st_header(&f, a, &head, &bytes));
    put_file(path, head, bytes, data, at);
}

static Err open_folder(const char *dir, Arena *a)
{
    ModelConfig c;
    Manifest m;
    TRY(model_config_inference(dir, a, &c));
    TRY(hf_open(dir, &c, F32, a, &m));
    return hf_check_tied(dir, &c, a);
}

static void damaged_folders(void **state)
{
    (void)state;
    static const Damage damages[] = {
        {"llama", "model.norm.weight", NULL, .says = "has no tensor \"model.norm.weight\""},
        {"llama", "lm_head.weight", NULL, .says = "tie_word_embeddings"},
        {"llama", "model.norm.weight", "model.norm.weights", .says = "has no tensor"},
        {"gpt2", "transformer.wte.weight", "wte", .says = "has no tensor \"wte.weight\", nor"},
        {"gpt2", "transformer.h.1.ln_2.bias", NULL, .says = "\"transformer.h.1.ln_2.bias\""},
        {"gpt2_hub", "h.1.attn.masked_bias", "h.1.attn.extra",
         .says = "\"h.1.attn.extra\" [] is not part of"},
        {"gpt2_hub", "lm_head.weight", "lm_head.weight", .values = true,
         .says = "\"lm_head.weight\" differs from \"wte.weight\""},
        {"llama",
         "lm_head.weight",
         "lm_head.weight",
         ST_F32,
         {24, 41},
         .says = "\"lm_head.weight\" is [24, 41], and by config.json it is [41, 24]"},
        {"qwen3",
         "model.layers.1.mlp.up_proj.weight",
         "model.layers.1.mlp.up_proj.weight",
         ST_I32,
         {30, 20},
         .says = "is of type I32"},
        {"gpt2",
         "transformer.h.0.attn.c_attn.weight",
         "transformer.h.0.attn.c_attn.weight",
         ST_F32,
         {72, 24},
         .says = "is [72, 24], and by config.json it is [24, 72]"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const Damage *d = &damages[i];
        char dir[64];
        Arena arena;
        DO(arena_open(&arena, "damage", ARENA_PLENTY));
        state_folder(dir);
        hf_folder_copy(hf_folder_path(d->folder, &arena), dir);
        DO(open_folder(dir, &arena));
        apply(d, dir, &arena);
        expect_error(d->says, open_folder(dir, &arena), ERR_CONFIG, d->says);
        state_folder_remove(dir);
        arena_close(&arena);
    }
}

/* Other prefixes than those that transformers writes today. */
static void without_its_prefix(void **state)
{
    (void)state;
    char dir[64], path[300];
    Arena arena;
    StFile f;
    char *data;
    const char *head;
    size_t bytes;
    DO(arena_open(&arena, "prefix", ARENA_PLENTY));
    state_folder(dir);
    hf_folder_copy(hf_folder_path("llama", &arena), dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    DO(st_read(path, &arena, &f));
    DO(ARENA_NEW(&arena, f.data_bytes, &data));
    FILE *in = fopen(path, "rb");
    fseek(in, (long)f.data_at, SEEK_SET);
    assert_int_equal(fread(data, 1, (size_t)f.data_bytes, in), f.data_bytes);
    fclose(in);
    for (int i = 0; i < f.n; i++)
        if (strncmp(f.tensor[i].name, "model.", 6) == 0) f.tensor[i].name += 6;
    DO(st_header(&f, &arena, &head, &bytes));
    put_file(path, head, bytes, data, f.data_bytes);
    DO(open_folder(dir, &arena));
    state_folder_remove(dir);
    arena_close(&arena);
}

static void edit_index(const char *dir, const char *tensor, const char *file)
{
    char path[300];
    json_error_t why;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    json_t *o = json_load_file(path, 0, &why), *map = json_object_get(o, "weight_map");
    assert_non_null(map);
    if (file)
        json_object_set_new(map, tensor, json_string(file));
    else
        json_object_del(map, tensor);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
}

static void shards_and_their_index(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *file, *says;
    } cases[] = {
        {"model.norm.weight", "model-00001-of-00007.safetensors",
         "\"model.norm.weight\" in model-00001"},
        {"model.norm.weight", NULL, "\"model.norm.weight\", which the index does not list"},
        {"model.more.weight", "model-00001-of-00007.safetensors", "and it is nowhere"},
        {"model.norm.weight", "../model.safetensors", "is not the plain name"},
        {"model.norm.weight", "model-00009.safetensors", "model-00009.safetensors: does not exist"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[64];
        Arena arena;
        DO(arena_open(&arena, "index", ARENA_PLENTY));
        state_folder(dir);
        hf_folder_copy(hf_folder_path("llama_bf16", &arena), dir);
        edit_index(dir, cases[i].tensor, cases[i].file);
        const Err got = open_folder(dir, &arena);
        expect_error(cases[i].says, got, got == ERR_IO ? ERR_IO : ERR_CHECK, cases[i].says);
        state_folder_remove(dir);
        arena_close(&arena);
    }
}

static void other_formats(void **state)
{
    (void)state;
    char dir[64], from[300], to[300];
    Arena arena;
    DO(arena_open(&arena, "formats", ARENA_PLENTY));
    state_folder(dir);
    hf_folder_copy(hf_folder_path("qwen2", &arena), dir);
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    snprintf(to, sizeof to, "%s/pytorch_model.bin", dir);
    assert_int_equal(rename(from, to), 0);
    expect_error("pickled", open_folder(dir, &arena), ERR_CONFIG, "save_pretrained");
    assert_int_equal(unlink(to), 0);
    expect_error("none", open_folder(dir, &arena), ERR_CONFIG, "neither model.safetensors nor");
    assert_true(hf_is_folder(dir));
    state_folder_remove(dir);
    assert_false(hf_is_folder(dir));
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_all_layouts),  cmocka_unit_test(damaged_folders),
        cmocka_unit_test(without_its_prefix), cmocka_unit_test(shards_and_their_index),
        cmocka_unit_test(other_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
