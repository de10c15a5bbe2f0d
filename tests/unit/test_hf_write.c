/* test_hf_write.c -- writes Hugging Face folders from others and from checkpoints of any layout,
 * in one file and in shards, with several threads. Every element equals the source's to the bit if
 * the type can represent it, else rounded to nearest. Nothing is overwritten, and no partial
 * output remains. */
#define _DEFAULT_SOURCE
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state/convert.h"
#include "state/hf_write.h"
#include "support/hf_folders.h"
#include "support/states.h"

typedef struct {
    Arena arena;
    char base[64], to[100];
    Source source;
    Team *team;
    HfWriteResult result;
} Bench;

static void bench_open(Bench *b, const char *path)
{
    DO(arena_open(&b->arena, "hf write", ARENA_PLENTY));
    state_folder(b->base);
    snprintf(b->to, sizeof b->to, "%s/out", b->base);
    DO(team_open(&b->team, 3, NULL));
    if (path) DO(source_open(path, F32, NULL, &b->arena, &b->source));
}

static void bench_close(Bench *b)
{
    team_close(b->team);
    state_folder_remove(b->base);
    arena_close(&b->arena);
}

static Err write_as(Bench *b, int type, int64_t shard_bytes)
{
    const HfWriteSettings w = {.from = &b->source,
                               .dir = b->to,
                               .extra_dir = b->source.extra_dir,
                               .type = type,
                               .shard_bytes = shard_bytes,
                               .team = b->team,
                               .temp = &b->arena};
    return hf_write(&w, &b->result);
}

/* Checks that every weight of the folder equals that of `from`, in the given type. */
static void compare(Bench *b, const char *from, int type)
{
    Model model;
    ModelConfig c;
    DO(model_config_inference(b->to, &b->arena, &c));
    DO(model_build(&b->source.model, F32, (BatchShape){1, 1}, &b->arena, &model));
    for (int i = 0; i < model.n_params; i++) {
        const Param *p = &model.param[i];
        double *want = calloc((size_t)p->count, sizeof *want), *got = calloc((size_t)p->count, 8);
        hf_folder_weight(from, &b->source.model, p, &b->arena, want);
        hf_folder_weight(b->to, &c, p, &b->arena, got);
        for (int64_t e = 0; e < p->count; e++) {
            uint16_t half;
            float f = (float)want[e];
            if (type == ST_BF16 || type == ST_F16) {
                convert(ST_F32, &f, (StType)type, &half, 1);
                convert((StType)type, &half, ST_F64, &want[e], 1);
            }
            if (memcmp(&want[e], &got[e], sizeof *got) != 0)
                fail_msg("%s: %s[%lld] is %.9g, not %.9g", from, p->name, (long long)e, got[e],
                         want[e]);
        }
        free(want);
        free(got);
    }
}

static bool is_there(const char *dir, const char *name)
{
    char path[300];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &s) == 0;
}

static void check_config(const Bench *b, const char *key, const char *want)
{
    char path[200];
    json_error_t why;
    snprintf(path, sizeof path, "%s/config.json", b->to);
    json_t *o = json_load_file(path, 0, &why);
    if (!o) fail_msg("%s: %s", path, why.text);
    const char *is = json_string_value(json_object_get(o, key));
    if (!is || strcmp(is, want) != 0) fail_msg("%s: %s is %s", path, key, is ? is : "none");
    json_decref(o);
}

static json_t *read_config(const char *dir)
{
    char path[300];
    json_error_t why;
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *o = json_load_file(path, 0, &why);
    if (!o) fail_msg("%s: %s", path, why.text);
    return o;
}

/* Every key and value of the folder's config.json, and no other; but not how weights in 8 bits were
 * stored. */
static void check_config_kept(const Bench *b, const char *from)
{
    json_t *is = read_config(b->to), *want = read_config(from);
    if (json_is_object(json_object_get(want, "quantization_config")))
        json_object_del(want, "quantization_config");
    if (!json_equal(is, want)) fail_msg("%s: %s", from, json_dumps(is, JSON_SORT_KEYS));
    json_decref(is);
    json_decref(want);
}

static void from_theirs(void **state)
{
    (void)state;
    static const struct {
        int type;
        int64_t shard_bytes;
    } way[] = {{HF_AS_STORED, HF_SHARD_BYTES}, {ST_BF16, 3000}, {ST_F32, 7000}, {ST_F16, 1}};
    for (int i = 0; hf_folders[i]; i++)
        for (size_t k = 0; k < sizeof way / sizeof *way; k++) {
            Bench b;
            Arena arena;
            DO(arena_open(&arena, "path", ARENA_PLENTY));
            const char *from = hf_folder_path(hf_folders[i], &arena);
            bench_open(&b, from);
            const bool fp8 = strcmp(hf_folders[i], "llama_fp8") == 0;
            if (fp8 && way[k].type == HF_AS_STORED) { /* scales are read, not written */
                assert_int_equal(write_as(&b, way[k].type, way[k].shard_bytes), ERR_CONFIG);
                assert_non_null(strstr(err_text(), "--dtype bf16"));
                bench_close(&b);
                arena_close(&arena);
                continue;
            }
            DO(write_as(&b, way[k].type, way[k].shard_bytes));
            assert_true(is_there(b.to, "model.safetensors.index.json") == (k > 0));
            assert_true(k == 0 ? b.result.files == 1 : b.result.files > 2);
            assert_int_equal(b.result.overflow, 0);
            if (k == 1) check_config(&b, "dtype", "bfloat16");
            compare(&b, from, way[k].type);
            assert_false(is_there(b.base, "out.tmp"));
            bench_close(&b);
            arena_close(&arena);
        }
}

/* ---- through a checkpoint ---- */

typedef struct {
    const Source *from;
    const char *folder;
} Through;

static Err load_and_save(StateRank *r, void *work)
{
    const Through *x = work;
    LoadResult loaded;
    const LoadSettings set = {.manifest = &x->from->manifest,
                              .scope = LOAD_WEIGHTS,
                              .rank = &r->rank,
                              .comm = r->world->comm,
                              .all = r->world->all,
                              .temp = r->world->arena};
    TRY(world_agree(r->world, state_load(&set, &loaded)));
    return state_save(r, x->folder, 2, true);
}

static void by_way_of_a_checkpoint(void **state)
{
    (void)state;
    static const char *const words[] = {"dp=2 zero=3", "pp=2 tp=3 zero=0", NULL};
    for (int i = 0; hf_folders[i]; i++)
        for (int k = 0; words[k]; k++) {
            Bench b;
            StateWorld w;
            Arena arena;
            char step[200];
            DO(arena_open(&arena, "path", ARENA_PLENTY));
            const char *from = hf_folder_path(hf_folders[i], &arena);
            bench_open(&b, from);
            const Source theirs = b.source;
            state_world_open_as(
                &w, &(StateSpec){.words = words[k], .dtype = F32, .config = &theirs.model});
            Through x = {&theirs, b.base};
            if (state_world_run(&w, load_and_save, &x) != OK) fail_msg("%s", err_text());
            snprintf(step, sizeof step, "%s/%s", b.base, generation_of(2).name);
            DO(manifest_read(step, &b.arena, &b.source.manifest));
            b.source.kind = SOURCE_CHECKPOINT;
            b.source.dir = step;
            DO(write_as(&b, HF_AS_STORED, HF_SHARD_BYTES));
            check_config_kept(&b, from); /* the recorded type too: of some folders bf16 or f16 */
            compare(&b, from, ST_F32);
            state_world_close(&w);
            bench_close(&b);
            arena_close(&arena);
        }
}

/* ---- tensors of several chunks ---- */

typedef struct {
    StateWhole whole;
    const char *folder;
    const Source *from; /* NULL: filled and saved */
} Large;

static Err fill_or_load(StateRank *r, void *work)
{
    Large *x = work;
    LoadResult loaded;
    if (!x->from) {
        state_fill(r, 9);
        TRY(state_collect(r, &x->whole));
        return state_save(r, x->folder, 2, false);
    }
    const LoadSettings set = {.manifest = &x->from->manifest,
                              .scope = LOAD_WEIGHTS,
                              .rank = &r->rank,
                              .comm = r->world->comm,
                              .all = r->world->all,
                              .temp = r->world->arena};
    TRY(world_agree(r->world, state_load(&set, &loaded)));
    return state_collect(r, &x->whole); /* an error if the state differs */
}

static void run_large(StateWorld *w, const StateSpec *spec, Large *x)
{
    state_world_open_as(w, spec);
    if (!x->from) state_whole_open(&x->whole, w);
    if (state_world_run(w, fill_or_load, x) != OK) fail_msg("%s: %s", spec->words, err_text());
}

static void compare_whole(Bench *b, const Large *x)
{
    Model model;
    DO(model_build(&b->source.model, F32, (BatchShape){1, 1}, &b->arena, &model));
    for (int i = 0; i < x->whole.tensors.n; i++) {
        const Param *p = &model.param[model_find_param(&model, x->whole.tensors.tensor[i].name)];
        const float *want = (const float *)(const void *)x->whole.data[i];
        double *got = calloc((size_t)p->count, sizeof *got);
        hf_folder_weight(b->to, &b->source.model, p, &b->arena, got);
        for (int64_t e = 0; e < p->count; e++)
            if (!(got[e] == (double)want[e]))
                fail_msg("%s[%lld] is %.9g, not %.9g", p->name, (long long)e, got[e],
                         (double)want[e]);
        free(got);
    }
}

static void tensors_of_several_chunks(void **state)
{
    (void)state;
    static Large x;
    Bench b;
    StateWorld one, two;
    Source theirs;
    char step[200];
    bench_open(&b, HF_GOLDEN "gpt2");
    ModelConfig c = b.source.model;
    c.width = 1100, c.n_heads = c.n_kv_heads = 4, c.head_size = 275, c.ff_width = 18,
    c.vocab = 1201, c.n_layers = 1;
    const StateSpec spec = {.words = "dp=2 zero=1", .dtype = F32, .kind = OPTIM_SGD, .config = &c};
    StateSpec other = spec;
    x = (Large){.folder = b.base};
    run_large(&one, &spec, &x);
    snprintf(step, sizeof step, "%s/%s", b.base, generation_of(2).name);
    DO(manifest_read(step, &b.arena, &b.source.manifest));
    b.source.kind = SOURCE_CHECKPOINT;
    b.source.dir = step;
    b.source.model = c;
    DO(write_as(&b, ST_F32, 15000000));
    assert_int_equal(b.result.files, 3);
    compare_whole(&b, &x);
    DO(source_open(b.to, F32, NULL, &b.arena, &theirs));
    assert_true(part_chunks(&theirs.manifest.tensors, &theirs.manifest.part[0]) > 1);
    x.from = &theirs;
    other.words = "tp=3";
    run_large(&two, &other, &x);
    state_whole_close(&x.whole);
    state_world_close(&one);
    state_world_close(&two);
    bench_close(&b);
}

/* ---- other files, and errors ---- */

static void put(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A checkpoint's ids come from the tokenizer. */
static void a_tokenizer_is_copied(void **state)
{
    (void)state;
    Bench b;
    char extra_dir[100];
    bench_open(&b, HF_GOLDEN "qwen2");
    snprintf(extra_dir, sizeof extra_dir, "%s/tokenizer", b.base);
    assert_int_equal(mkdir(extra_dir, 0777), 0);
    put(extra_dir, "tokenizer.json",
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\"}, "
        "{\"id\": 7, \"content\": \"</s>\"}]}");
    put(extra_dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": null}");
    put(extra_dir, "merges.txt", "#version\n");
    put(extra_dir, "notes.txt", "mine");
    b.source.extra_dir = extra_dir;
    b.source.kind = SOURCE_CHECKPOINT;
    DO(write_as(&b, ST_F32, HF_SHARD_BYTES));
    assert_int_equal(b.result.tokenizer_files, 3);
    assert_true(is_there(b.to, "merges.txt") && !is_there(b.to, "notes.txt"));
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", b.to);
    json_t *o = json_load_file(path, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(o, "bos_token_id")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "eos_token_id")), 7);
    assert_true(json_is_null(json_object_get(o, "pad_token_id")));
    json_decref(o);
    bench_close(&b);
}

static void nothing_is_overwritten(void **state)
{
    (void)state;
    Bench b;
    bench_open(&b, HF_GOLDEN "qwen3");
    DO(write_as(&b, ST_F32, HF_SHARD_BYTES));
    expect_error("twice", write_as(&b, ST_F32, HF_SHARD_BYTES), ERR_CONFIG, "already exists");
    compare(&b, HF_GOLDEN "qwen3", ST_F32);
    bench_close(&b);
}

/* A file that ends early while it is read: DST.tmp is removed too. */
static void no_partial_output_stays(void **state)
{
    (void)state;
    Bench b;
    char copy[100], path[200];
    bench_open(&b, NULL);
    snprintf(copy, sizeof copy, "%s/in", b.base);
    hf_folder_copy(HF_GOLDEN "gpt2", copy);
    DO(source_open(copy, F32, NULL, &b.arena, &b.source));
    snprintf(path, sizeof path, "%s/model.safetensors", copy);
    assert_int_equal(truncate(path, 20000), 0);
    expect_error("short", write_as(&b, ST_F32, HF_SHARD_BYTES), ERR_CHECK, "the file ends");
    assert_false(is_there(b.base, "out") || is_there(b.base, "out.tmp"));
    bench_close(&b);
}

static void overflow_is_counted(void **state)
{
    (void)state;
    Bench b;
    char copy[100], path[200];
    const float large[2] = {70000, -1e9F};
    bench_open(&b, NULL);
    snprintf(copy, sizeof copy, "%s/in", b.base);
    hf_folder_copy(HF_GOLDEN "llama", copy);
    DO(source_open(copy, F32, NULL, &b.arena, &b.source));
    snprintf(path, sizeof path, "%s/model.safetensors", copy);
    FILE *f = fopen(path, "r+b");
    fseek(f, (long)b.source.manifest.part[3].at + 40, SEEK_SET);
    fwrite(large, sizeof large, 1, f);
    fclose(f);
    DO(write_as(&b, ST_F16, HF_SHARD_BYTES));
    assert_int_equal(b.result.overflow, 2);
    compare(&b, copy, ST_F16);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_theirs),
        cmocka_unit_test(by_way_of_a_checkpoint),
        cmocka_unit_test(tensors_of_several_chunks),
        cmocka_unit_test(a_tokenizer_is_copied),
        cmocka_unit_test(nothing_is_overwritten),
        cmocka_unit_test(no_partial_output_stays),
        cmocka_unit_test(overflow_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
