/* hf_open.c -- locates each parameter in the files of a Hugging Face folder.
 *
 *     our name                    names in files
 *     h.0.ln_1.weight             h.0.ln_1.weight  transformer.h.0.ln_1.weight
 *     model.norm.weight           model.norm.weight  norm.weight
 *     lm_head.weight              the same; if tied, missing or equal to the embedding
 *     X.weight in 8 bits          X.weight, and its scales in X.weight_scale_inv
 *
 * The name of the embedding determines the style of all names. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "state/convert.h"
#include "state/disk.h"
#include "state/hash.h"
#include "state/hf.h"
#include "state/strict.h"

typedef enum {
    NAMES_AS_HERE,
    NAMES_WITH_TRANSFORMER,
    NAMES_WITHOUT_MODEL,
    N_NAME_STYLES
} NameStyle;

enum {
    NAME_BYTES = 224,
    SHAPE_BYTES = 96,
    COMPARE_BYTES = 1 << 20,
    MAX_CONFIG_BYTES = 1 << 20,
    MAX_CONFIG_DEPTH = 16
};

static const char head_name[] = "lm_head.weight";

/* Tensors that follow from the config and are ignored. */
static const char *const derived[] = {
    "h.*.attn.bias", /* the causal mask; the biases are c_attn's and c_proj's */
    "h.*.attn.masked_bias", "transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias",
    "*rotary_emb.inv_freq",
};

typedef struct {
    const char *dir;
    const ModelConfig *config;
    Arena *arena;
    Model model;
    HfFiles files;
    NameStyle names;
    int64_t block[2]; /* elements of a tensor of 8 bits that share a scale; 0: not read yet */
    Manifest *m;
} HfOpener;

static const char *styled_name(NameStyle s, const char *name, char out[NAME_BYTES])
{
    const bool head = strcmp(name, head_name) == 0;
    if (s == NAMES_WITH_TRANSFORMER && !head)
        snprintf(out, NAME_BYTES, "transformer.%s", name);
    else if (s == NAMES_WITHOUT_MODEL && strncmp(name, "model.", 6) == 0)
        snprintf(out, NAME_BYTES, "%s", name + 6);
    else
        snprintf(out, NAME_BYTES, "%s", name);
    return out;
}

static Err find_name_style(HfOpener *o)
{
    char name[NAME_BYTES];
    const char *embedding = o->model.param[0].name;
    for (int s = 0; s < N_NAME_STYLES; s++) {
        if (!hf_find(&o->files, styled_name((NameStyle)s, embedding, name))) continue;
        o->names = (NameStyle)s;
        return OK;
    }
    return err_fail(ERR_CONFIG, "%s: has no tensor \"%s\", nor \"transformer.%s\"; is it a %s?",
                    o->dir, embedding, embedding, family_name(o->config->family));
}

static const char *shape_text(const int64_t *n, int ndim, char out[SHAPE_BYTES])
{
    int at = snprintf(out, SHAPE_BYTES, "[");
    for (int d = 0; d < ndim && at < SHAPE_BYTES; d++)
        at += snprintf(out + at, (size_t)(SHAPE_BYTES - at), "%s%lld", d ? ", " : "",
                       (long long)n[d]);
    if (at < SHAPE_BYTES) snprintf(out + at, (size_t)(SHAPE_BYTES - at), "]");
    return out;
}

/* Returns the shape that the whole tensor must have in the file. */
static void shape_there(const HfPlace *place, const Param *p, int64_t n[2])
{
    const int64_t columns = p->info.n[p->info.ndim - 1];
    n[0] = place->transposed ? columns : place->rows;
    n[1] = place->transposed ? place->rows : columns;
}

static bool is_fp8(StType t) { return t == ST_F8_E4M3 || t == ST_F8_E5M2; }

static Err check_tensor(const HfOpener *o, const HfEntry *e, const int64_t want[2], int ndim)
{
    const StTensor *t = e->tensor;
    const char *path = o->files.file[e->file].path;
    char is[SHAPE_BYTES], should[SHAPE_BYTES];
    bool same = t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++) same = t->n[d] == want[d];
    if (!same)
        return err_fail(ERR_CONFIG, "%s: tensor \"%s\" is %s, and by config.json it is %s", path,
                        t->name, shape_text(t->n, t->ndim, is), shape_text(want, ndim, should));
    if (!convert_supports(t->type) && !is_fp8(t->type))
        return err_fail(ERR_CONFIG,
                        "%s: tensor \"%s\" is of type %s; F64, F32, F16, BF16 and, with scales, "
                        "F8_E4M3 are read",
                        path, t->name, st_type_name(t->type));
    return OK;
}

/* Reads the shape of a block of elements that share a scale: quantization_config of config.json. */
static Err read_block(HfOpener *o)
{
    char path[DISK_PATH_BYTES];
    const char *text;
    size_t bytes;
    json_t *root;
    bool found = true;
    TRY(disk_path(o->dir, "config.json", path));
    TRY(text_read_file(path, MAX_CONFIG_BYTES, o->arena, &text, &bytes));
    TRY(strict_parse(path, text, bytes, MAX_CONFIG_DEPTH, &root));
    const json_t *list =
        json_object_get(json_object_get(root, "quantization_config"), "weight_block_size");
    for (size_t d = 0; d < 2; d++) {
        o->block[d] = json_integer_value(json_array_get(list, d));
        found = found && json_array_size(list) == 2 && o->block[d] > 0;
    }
    json_decref(root);
    if (found) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: has weights in FP8, and config.json has no weight_block_size of two sizes "
                    "in its quantization_config; FP8 with other scales is not read",
                    o->dir);
}

/* Finds the scales of a tensor of 8 bits. `there` is the shape of the whole tensor. */
static Err find_scale(HfOpener *o, const HfEntry *of, const int64_t there[2], StoredScale *out)
{
    char name[NAME_BYTES + 16];
    const char *path = o->files.file[of->file].path;
    snprintf(name, sizeof name, "%s_scale_inv", of->tensor->name);
    HfEntry *e = hf_find(&o->files, name);
    if (!e)
        return err_fail(ERR_CONFIG,
                        "%s: tensor \"%s\" is of type %s and has no scales \"%s\"; FP8 without "
                        "scales of blocks is not read",
                        path, of->tensor->name, st_type_name(of->tensor->type), name);
    if (o->block[0] == 0) TRY(read_block(o));
    int64_t want[2];
    for (int d = 0; d < 2; d++) want[d] = (there[d] + o->block[d] - 1) / o->block[d];
    TRY(check_tensor(o, e, want, 2));
    if (!convert_supports(e->tensor->type) || e->tensor->type == ST_F64)
        return err_fail(ERR_CONFIG, "%s: scales \"%s\" are of type %s; F32, F16 and BF16 are read",
                        o->files.file[e->file].path, name, st_type_name(e->tensor->type));
    e->used = true;
    *out = (StoredScale){.file = e->file,
                         .type = e->tensor->type,
                         .at = o->files.file[e->file].data_at + e->tensor->at,
                         .block = {o->block[0], o->block[1]},
                         .columns = want[1]};
    return OK;
}

static Err missing(const HfOpener *o, const char *name)
{
    if (strcmp(name, head_name) == 0)
        return err_fail(ERR_CONFIG,
                        "%s: has no tensor \"%s\"; if the head is the embedding's weight, "
                        "config.json needs tie_word_embeddings: true",
                        o->dir, name);
    return err_fail(ERR_CONFIG, "%s: has no tensor \"%s\", which a %s with this config.json needs",
                    o->dir, name, family_name(o->config->family));
}

/* Adds the part of tensor t that is tensor i of the parameter in the files. */
static Err add_part(HfOpener *o, const Param *p, int64_t i, int tensor)
{
    char name[NAME_BYTES];
    const HfPlace place = hf_place(o->config, p, i);
    HfEntry *e = hf_find(&o->files, styled_name(o->names, place.name, name));
    const int ndim = p->info.ndim == 1 ? 1 : 2;
    int64_t there[2];
    StoredFormat *stored;
    if (!e) return missing(o, name);
    shape_there(&place, p, there);
    TRY(check_tensor(o, e, there, ndim));
    TRY(ARENA_NEW(o->arena, 1, &stored));
    *stored = (StoredFormat){
        .type = e->tensor->type, .transposed = place.transposed, .pitch = ndim == 2 ? there[1] : 1};
    if (is_fp8(e->tensor->type)) {
        StoredScale *scale;
        TRY(ARENA_NEW(o->arena, 1, &scale));
        TRY(find_scale(o, e, there, scale));
        *(place.transposed ? &scale->column : &scale->row) = place.from;
        stored->scale = scale;
    }
    e->used = true;
    ManifestPart *part = &o->m->part[o->m->n_parts++];
    *part = (ManifestPart){.tensor = tensor, .file = e->file, .stored = stored};
    const int64_t skip = place.from * (place.transposed || ndim == 1 ? 1 : there[1]);
    part->at =
        o->files.file[e->file].data_at + e->tensor->at + skip * st_type_bytes(e->tensor->type);
    part->box.ndim = p->info.ndim;
    for (int d = 0; d < p->info.ndim; d++) part->box.hi[d] = p->info.n[d];
    if (p->info.ndim == 3) part->box.lo[0] = i, part->box.hi[0] = i + 1;
    return OK;
}

static Err add_param(HfOpener *o, const Param *p)
{
    const int tensor = o->m->tensors.n++;
    StateTensor *t = &o->m->tensors.tensor[tensor];
    *t = (StateTensor){.name = p->name, .dtype = t->dtype, .shape = {.ndim = p->info.ndim}};
    for (int d = 0; d < p->info.ndim; d++) t->shape.n[d] = p->info.n[d];
    for (int64_t i = 0; i < hf_tensors(p); i++) TRY(add_part(o, p, i, tensor));
    return OK;
}

/* Checks that every tensor has been used, or follows from the config. */
static Err check_rest(const HfOpener *o)
{
    const HfFiles *f = &o->files;
    char shape[SHAPE_BYTES];
    for (int i = 0; i < f->n; i++) {
        const StTensor *t = f->entry[i].tensor;
        bool known = f->entry[i].used || (o->config->tied && strcmp(t->name, head_name) == 0);
        for (size_t k = 0; k < sizeof derived / sizeof *derived; k++)
            known = known || text_glob(derived[k], t->name);
        if (known) continue;
        return err_fail(ERR_CONFIG,
                        "%s: tensor \"%.100s\" %s is not part of a %s with this config.json; "
                        "without it the model would be another",
                        f->file[f->entry[i].file].path, t->name, shape_text(t->n, t->ndim, shape),
                        family_name(o->config->family));
    }
    return OK;
}

/* Fills in files, hash and scalars of the manifest. All ranks compare the hash, which covers
 * the headers. */
static Err describe(const HfOpener *o, DType wide)
{
    Manifest *m = o->m;
    uint64_t *hashes;
    TRY(ARENA_NEW(o->arena, m->n_files, &m->file));
    TRY(ARENA_NEW(o->arena, m->n_files, &hashes));
    for (int i = 0; i < m->n_files; i++) {
        const StFile *f = &o->files.file[i];
        m->file[i] = (ManifestFile){o->files.name[i], f->data_at + f->data_bytes, f->header_hash};
        hashes[i] = f->header_hash;
    }
    m->hash = hash_bytes(hashes, (size_t)m->n_files * sizeof *hashes);
    m->scalars = (StateScalars){
        .optim = "none", .dtype = dtype_name(wide), .device = "", .kernels = "", .config = ""};
    Text t = text_in(o->arena);
    model_config_json(o->config, &t);
    return text_done(&t, &m->scalars.model);
}

Err hf_open(const char *dir, const ModelConfig *c, DType wide, Arena *a, Manifest *out)
{
    HfOpener o = {.dir = dir, .config = c, .arena = a, .m = out};
    int64_t parts = 0;
    if (c->frames)
        return err_fail(ERR_CONFIG,
                        "%s: %s has no Hugging Face form; give a run folder or a checkpoint", dir,
                        family_name(c->family));
    ModelConfig plain = *c;
    plain.fp8_marks = false; /* state of training */
    TRY(hf_files_open(dir, a, &o.files));
    TRY(model_build(&plain, F32, (BatchShape){1, 1}, a, &o.model));
    *out = (Manifest){.dir = o.files.dir, .n_files = o.files.n_files};
    TRY(ARENA_NEW(a, o.model.n_params, &out->tensors.tensor));
    for (int p = 0; p < o.model.n_params; p++) parts += hf_tensors(&o.model.param[p]);
    TRY(ARENA_NEW(a, parts, &out->part));
    TRY(find_name_style(&o));
    for (int p = 0; p < o.model.n_params; p++) {
        out->tensors.tensor[out->tensors.n].dtype = wide;
        TRY(add_param(&o, &o.model.param[p]));
    }
    TRY(check_rest(&o));
    return describe(&o, wide);
}

/* ---- a tied head that is stored nevertheless ---- */

static Err same_bytes(const HfFiles *f, const HfEntry *a, const HfEntry *b, Arena *temp)
{
    const HfEntry *of[2] = {a, b};
    char *buffer;
    int fd[2] = {-1, -1};
    Err err = ARENA_NEW(temp, 2 * COMPARE_BYTES, &buffer);
    for (int i = 0; i < 2 && err == OK; i++) err = disk_open(f->file[of[i]->file].path, &fd[i]);
    for (int64_t at = 0, n; err == OK && at < a->tensor->bytes; at += n) {
        n = a->tensor->bytes - at < COMPARE_BYTES ? a->tensor->bytes - at : COMPARE_BYTES;
        for (int i = 0; i < 2 && err == OK; i++) {
            const StFile *file = &f->file[of[i]->file];
            err = disk_read(fd[i], file->path, file->data_at + of[i]->tensor->at + at,
                            buffer + i * COMPARE_BYTES, (size_t)n);
        }
        if (err == OK && memcmp(buffer, buffer + COMPARE_BYTES, (size_t)n) != 0)
            err = err_fail(ERR_CONFIG,
                           "%s: by config.json the head is the embedding's weight "
                           "(tie_word_embeddings), and \"%s\" differs from \"%s\"; set "
                           "tie_word_embeddings: false to have both",
                           f->dir, b->tensor->name, a->tensor->name);
    }
    for (int i = 0; i < 2; i++)
        if (fd[i] >= 0) disk_close(fd[i]);
    return err;
}

Err hf_check_tied(const char *dir, const ModelConfig *c, Arena *temp)
{
    HfOpener o = {.dir = dir, .config = c, .arena = temp};
    char name[NAME_BYTES];
    const size_t mark = arena_mark(temp);
    if (!c->tied) return OK;
    TRY(hf_files_open(dir, temp, &o.files));
    TRY(model_build(c, F32, (BatchShape){1, 1}, temp, &o.model));
    TRY(find_name_style(&o));
    const HfEntry *head = hf_find(&o.files, head_name);
    const HfEntry *embedding = hf_find(&o.files, styled_name(o.names, o.model.param[0].name, name));
    if (!head) return OK;
    const StTensor *a = embedding->tensor, *b = head->tensor;
    if (a->type != b->type || a->bytes != b->bytes)
        return err_fail(ERR_CONFIG,
                        "%s: by config.json the head is the embedding's weight, and \"%s\" is of "
                        "another type or size than \"%s\"",
                        dir, b->name, a->name);
    const Err err = same_bytes(&o.files, embedding, head, temp);
    arena_rewind(temp, mark);
    return err;
}
