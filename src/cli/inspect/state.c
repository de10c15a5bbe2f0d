/* state.c -- descriptions of checkpoints: a folder of them, a single one, its `latest`
 * file; and of any .safetensors file. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "cli/inspect/inspect.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "state/chunk_read.h"
#include "state/folder.h"
#include "state/rank_file.h"
#include "state/safetensors.h"

enum { ROWS = 12, BYTES_TEXT = 24, SHAPE_BYTES = 24 * MAX_ST_DIMS };

static const char *shape_text(const int64_t *n, int ndim, char *out)
{
    size_t at = 0;
    snprintf(out, SHAPE_BYTES, "%s", ndim ? "" : "scalar");
    for (int d = 0; d < ndim; d++)
        at +=
            (size_t)snprintf(out + at, SHAPE_BYTES - at, "%s%lld", d ? " x " : "", (long long)n[d]);
    return out;
}

/* Prints the rows and, if there are more than ROWS, the number of those left out. */
static Err print_table(const TextTable *t, int64_t left, Arena *a)
{
    const char *words;
    char count[COUNT_BYTES];
    Text text = text_in(a);
    table_text(t, "    ", &text);
    TRY(text_done(&text, &words));
    fputs(words, stdout);
    if (left > 0) printf("    and %s more\n", grouped_digits(left, count));
    return OK;
}

/* ---- .safetensors ---- */

static bool is_safetensors(const char *path, Bytes data)
{
    (void)data;
    return inspect_ends_in(path, ".safetensors");
}

static Err describe_safetensors(const char *path, Bytes data, Arena *a)
{
    enum { VALUE = 60 };
    StFile f;
    TextTable t;
    char shape[SHAPE_BYTES], count[COUNT_BYTES], bytes[BYTES_TEXT];
    (void)data;
    TRY(st_read(path, a, &f));
    printf("%s: a safetensors file\n", path);
    printf("  tensors    %s, %s of data from byte %lld on\n", grouped_digits(f.n, count),
           text_bytes(f.data_bytes, bytes), (long long)f.data_at);
    for (int i = 0; i < f.n_pairs; i++)
        printf("  metadata   %s: %.*s%s\n", f.pair[i].key, VALUE, f.pair[i].value,
               strlen(f.pair[i].value) > VALUE ? "..." : "");
    const int rows = f.n < ROWS ? f.n : ROWS;
    TRY(table_open(&t, 3, rows, a));
    for (int i = 0; i < rows; i++) {
        table_cell(&t, "%s", f.tensor[i].name);
        table_cell(&t, "%s", st_type_name(f.tensor[i].type));
        table_cell(&t, "%s", shape_text(f.tensor[i].n, f.tensor[i].ndim, shape));
    }
    return print_table(&t, f.n - rows, a);
}

/* ---- latest ---- */

static const char *folder_of(const char *path, char *out)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, INSPECT_PATH_BYTES, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return out;
}

static bool is_latest(const char *path, Bytes data)
{
    return (strcmp(path, "latest") == 0 || inspect_ends_in(path, "/latest")) &&
           inspect_head_holds(data, "step-");
}

/* `latest` holds the name of a step folder and the hash of its manifest. A different hash means
 * that the folder was replaced or damaged after the save. */
static Err describe_latest(const char *path, Bytes data, Arena *a)
{
    char folder[INSPECT_PATH_BYTES], dir[INSPECT_PATH_BYTES + 40];
    Generation g;
    Manifest m;
    uint64_t hash;
    bool found;
    (void)data;
    TRY(folder_latest(folder_of(path, folder), &g, &hash, &found));
    if (!found) return err_fail(ERR_IO, "%s: has been removed", path);
    printf("%s: the newest checkpoint is %s\n", path, g.name);
    snprintf(dir, sizeof dir, "%s/%s", folder, g.name);
    TRY(manifest_read(dir, a, &m));
    if (m.hash != hash)
        return err_fail(ERR_CHECK,
                        "%s: the manifest of %s has the hash %016llx, but latest has %016llx", path,
                        g.name, (unsigned long long)m.hash, (unsigned long long)hash);
    printf("  manifest   has the hash in latest, %016llx\n", (unsigned long long)hash);
    return OK;
}

/* ---- one checkpoint ---- */

static int64_t elements_of(const Manifest *m, StateRole role)
{
    int64_t n = 0;
    for (int i = 0; i < m->tensors.n; i++)
        if (m->tensors.tensor[i].role == role) n += shape_count(&m->tensors.tensor[i].shape);
    return n;
}

static int64_t bytes_of(const Manifest *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_files; i++) n += m->file[i].bytes;
    return n;
}

static void print_scalars(const Manifest *m)
{
    const StateScalars *s = &m->scalars;
    char count[COUNT_BYTES], tokens[COUNT_BYTES];
    json_t *model = json_loads(s->model, 0, NULL);
    const char *type = json_string_value(json_object_get(model, "model_type"));
    printf("  step       %lld", (long long)s->step);
    if (s->skipped) printf(", %lld updates skipped", (long long)s->skipped);
    printf("; %s samples, %s tokens\n", grouped_digits(s->cursor, count),
           grouped_digits(s->tokens, tokens));
    printf("  model      %s%s%s parameters\n", type ? type : "", type ? ", " : "",
           grouped_digits(elements_of(m, STATE_WEIGHT), count));
    printf("  data       %016llx; %lld sequences of %lld tokens per step%s\n",
           (unsigned long long)s->data, (long long)s->batch, (long long)s->seq_len,
           s->pack ? ", packed" : "");
    printf("  numbers    %s, %s, seed %llu, on %s\n", s->dtype, s->optim,
           (unsigned long long)s->seed, s->device);
    json_decref(model);
}

/* Lists parameters in the order of the model, each with its roles (weight, master, moments). */
static Err print_tensors(const Manifest *m, Arena *a)
{
    TextTable t;
    char shape[SHAPE_BYTES], count[COUNT_BYTES];
    int rows = 0, of_weights = 0;
    printf("  tensors    %d, in %s parts\n", m->tensors.n, grouped_digits(m->n_parts, count));
    TRY(table_open(&t, 3, ROWS, a));
    for (int i = 0; i < m->tensors.n; i++) {
        const StateTensor *x = &m->tensors.tensor[i];
        if (x->role != STATE_WEIGHT || ++of_weights > ROWS) continue;
        Text roles = text_in(a);
        const char *words;
        for (int k = i; k < m->tensors.n && strcmp(m->tensors.tensor[k].name, x->name) == 0; k++)
            text_add(&roles, "%s%s", k > i ? " " : "", state_role_name(m->tensors.tensor[k].role));
        TRY(text_done(&roles, &words));
        table_cell(&t, "%s", x->name);
        table_cell(&t, "%s", shape_text(x->shape.n, x->shape.ndim, shape));
        table_cell(&t, "%s", words);
        rows++;
    }
    return print_table(&t, of_weights - rows, a);
}

/* Reads every chunk; chunk_read compares its hash. */
static Err read_all(const Manifest *m, Arena *a)
{
    ChunkReader r = chunk_reader(m);
    ProgressLine p = progress_begin("checking", m->dir, m->n_parts);
    void *chunk;
    Err err = arena_push(a, CHUNK_BYTES, &chunk);
    for (int64_t i = 0; i < m->n_parts && err == OK; i++) {
        const int64_t chunks = rank_file_part_chunks(&m->tensors, &m->part[i]);
        for (int64_t k = 0; k < chunks && err == OK; k++)
            err = chunk_read(&r, &m->part[i], k, chunk);
        progress_at(&p, i + 1);
    }
    progress_end(&p);
    chunk_reader_close(&r);
    return err;
}

/* manifest_check_files compares names, lengths and headers; only --check reads the data. */
static Err describe_checkpoint(const char *dir, bool check, Arena *a)
{
    Manifest m;
    char bytes[BYTES_TEXT];
    TRY(manifest_read(dir, a, &m));
    printf("%s: a checkpoint\n", dir);
    print_scalars(&m);
    TRY(print_tensors(&m, a));
    TRY(manifest_check_files(&m, a));
    if (check) TRY(read_all(&m, a));
    printf("  files      %d, %s; %s\n", m.n_files, text_bytes(bytes_of(&m), bytes),
           check ? "all present, and every byte matches its hash"
                 : "all present, with the right lengths; --check reads and verifies them");
    return OK;
}

static bool is_manifest(const char *path, Bytes data)
{
    return inspect_ends_in(path, "manifest.json") &&
           inspect_head_holds(data, "\"format\": \"sheaf checkpoint\"");
}

static Err describe_manifest(const char *path, Bytes data, Arena *a)
{
    char dir[INSPECT_PATH_BYTES];
    (void)data;
    return describe_checkpoint(folder_of(path, dir), false, a);
}

/* ---- folders ---- */

/* Prints one line per checkpoint. A damaged one is reported on its line and does not hide the
 * others. */
static Err print_generations(const char *path, const Generation *g, int n, Arena *a)
{
    printf("%s: %d checkpoint%s, newest first\n", path, n, n == 1 ? "" : "s");
    for (int i = 0; i < n; i++) {
        char dir[INSPECT_PATH_BYTES + 40], bytes[BYTES_TEXT], tokens[COUNT_BYTES];
        Manifest m;
        snprintf(dir, sizeof dir, "%s/%s", path, g[i].name);
        Err err = manifest_read(dir, a, &m);
        if (err == OK) err = manifest_check_files(&m, a);
        if (err == OK)
            printf("  %s  %s tokens, %s\n", g[i].name, grouped_digits(m.scalars.tokens, tokens),
                   text_bytes(bytes_of(&m), bytes));
        else
            printf("  %s  cannot be used: %s\n", g[i].name, err_text());
    }
    return OK;
}

Err inspect_state_folder(const char *path, bool check, Arena *a, bool *known)
{
    char manifest[INSPECT_PATH_BYTES];
    Generation *g;
    int n;
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    *known = map_exists(manifest);
    if (*known) return describe_checkpoint(path, check, a);
    TRY(folder_list(path, a, &g, &n));
    *known = n > 0;
    return *known ? print_generations(path, g, n, a) : OK;
}

const InspectKind inspect_state[] = {{is_manifest, describe_manifest},
                                     {is_safetensors, describe_safetensors},
                                     {is_latest, describe_latest},
                                     {NULL, NULL}};
