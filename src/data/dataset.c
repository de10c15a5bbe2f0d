/* dataset.c -- opens a stream of token files and computes its sample order and fingerprint. */
#include "data/dataset.h"

#include <stdio.h>
#include <string.h>
#include "data/encoded.h"
#include "data/map.h"

enum { HASHED_TOKENS = 4096, HASHED_SAMPLES = 256 };
enum { MAX_SCANNED_TOKENS = 1 << 28 }; /* scanned in about a second */

/* Bytes need 256 ids. In the other formats each token is checked. */
static Err check_vocab(const Tokens *t, int64_t vocab)
{
    const bool bytes = t->format == FORMAT_TEXT || t->format == FORMAT_JSONL;
    if (!bytes || vocab >= BYTE_VOCAB) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: %s, which needs a vocabulary of %d, and the model's has %lld; set "
                    "model.vocab_size=%d",
                    t->path, tokens_describe(t), BYTE_VOCAB, (long long)vocab, BYTE_VOCAB);
}

/* True if every id that the file's integer type can represent is in the vocabulary. */
static bool all_fit(const Tokens *t, int64_t vocab)
{
    return t->width <= 2 && !t->is_signed && vocab >= (int64_t)1 << 8 * t->width;
}

static Err scan_file(const Tokens *t, int64_t vocab)
{
    if (all_fit(t, vocab)) return OK;
    for (int64_t i = 0; i < t->n_tokens; i++) {
        const int64_t id = tokens_at(t, i);
        if (id >= 0 && id < vocab) continue;
        const Err err = tokens_bad_id(t, i, vocab);
        return err_fail(err, "%s `sheaf data check --vocab %lld %s` judges a file by itself",
                        err_text(), (long long)vocab, t->path);
    }
    return OK;
}

/* Reports a bad id before the first step, not hours into a run. In a longer stream each id is
 * checked when it is read. */
static Err scan_files(const Dataset *d)
{
    if (d->n_tokens > MAX_SCANNED_TOKENS) return OK;
    for (int f = 0; f < d->settings.n_paths; f++) TRY(scan_file(&d->file[f], d->settings.vocab));
    return OK;
}

/* Replaces text by its ids if there is a tokenizer, which is loaded only for that. */
static Err encode_text_file(Dataset *d, Tokens *t, Arena *a)
{
    const DatasetSettings *s = &d->settings;
    Tokenizer *tokenizer;
    if (!s->tokenizer || (t->format != FORMAT_TEXT && t->format != FORMAT_JSONL)) return OK;
    TRY(tokenizer_load(s->tokenizer, a, &tokenizer));
    Err err = tokenizer_check_vocab(tokenizer, s->vocab);
    if (err == OK) err = tokens_encode(t, tokenizer, s->threads > 0 ? s->threads : 1, a);
    tokenizer_close(tokenizer);
    d->n_encoded += err == OK;
    return err;
}

static Err open_files(Dataset *d, Arena *a)
{
    const DatasetSettings *s = &d->settings;
    for (int f = 0; f < s->n_paths; f++) {
        TRY(tokens_open(s->path[f], s->format, a, &d->file[f]));
        TRY(encode_text_file(d, &d->file[f], a));
        TRY(check_vocab(&d->file[f], s->vocab));
        d->first[f + 1] = d->first[f] + d->file[f].n_tokens;
    }
    d->n_tokens = d->first[s->n_paths];
    if (d->n_tokens >= 2) return scan_files(d);
    return err_fail(ERR_CONFIG,
                    "%s%s: %lld tokens in all, and a sample needs 2: one to read, one to predict; "
                    "give a longer file",
                    s->path[0], s->n_paths > 1 ? " and the others" : "", (long long)d->n_tokens);
}

static Err open_clips(Dataset *d, Dataset *out)
{
    const DatasetSettings *s = &d->settings;
    for (int f = 0; f < s->n_paths; f++) {
        TRY(clip_file_check(&s->clip_file[f], s->model));
        d->first[f + 1] = d->first[f] + clip_file_samples(&s->clip_file[f], s->model);
    }
    d->n_samples = d->first[s->n_paths];
    d->n_tokens = d->n_samples * s->seq_len;
    if (d->n_samples < 1) return err_fail(ERR_CONFIG, "%s: has no clip", s->path[0]);
    *out = *d;
    return OK;
}

Err dataset_open(const DatasetSettings *settings, Arena *a, Dataset *out)
{
    Dataset d = {.settings = *settings};
    MUST(settings->seq_len >= 1 && (settings->vocab >= 1 || settings->clip_file),
         "seq_len %lld, vocab %lld", (long long)settings->seq_len, (long long)settings->vocab);
    if (settings->n_paths < 1)
        return err_fail(ERR_CONFIG, "no data files; name some, as data.train=corpus.txt");
    TRY(ARENA_NEW(a, settings->n_paths + 1, &d.first));
    if (settings->clip_file) return open_clips(&d, out);
    TRY(ARENA_NEW(a, settings->n_paths, &d.file));
    const Err err = open_files(&d, a);
    if (err != OK) {
        dataset_close(&d);
        return err;
    }
    d.n_samples = (d.n_tokens - 2) / settings->seq_len + 1; /* n - 1 targets, rounded up */
    *out = d;
    return OK;
}

void dataset_close(Dataset *d)
{
    for (int f = 0; d->file && f < d->settings.n_paths; f++) tokens_close(&d->file[f]);
}

int64_t dataset_sample(const Dataset *d, int64_t cursor)
{
    char name[48];
    MUST(cursor >= 0, "cursor %lld", (long long)cursor);
    snprintf(name, sizeof name, "sample order %lld", (long long)(cursor / d->n_samples));
    const Random epoch = random_named(d->settings.seed, name);
    return (int64_t)random_permute(&epoch, (uint64_t)d->n_samples,
                                   (uint64_t)(cursor % d->n_samples));
}

static uint64_t mix(uint64_t hash, int64_t word)
{
    hash = (hash ^ (uint64_t)word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t mix_tokens(uint64_t hash, const Tokens *t, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) hash = mix(hash, tokens_at(t, i));
    return hash;
}

static uint64_t mix_file(uint64_t hash, const Tokens *t)
{
    const int64_t n = t->n_tokens, end = n < HASHED_TOKENS ? n : HASHED_TOKENS;
    /* A list with one document equals no list. */
    hash = mix(mix(hash, n), t->n_starts > 1 ? t->n_starts : 0);
    hash = mix_tokens(hash, t, 0, end);
    hash = mix_tokens(hash, t, n - end, n);
    for (int64_t k = 0; k < HASHED_SAMPLES && n > 2 * end; k++)
        hash = mix(hash, tokens_at(t, n / HASHED_SAMPLES * k));
    return hash;
}

/* Shapes, and patches of some tokens. */
static uint64_t mix_clips(uint64_t hash, const ClipFile *file, const ModelConfig *m)
{
    const int64_t n = clip_file_samples(file, m) * m->max_positions;
    const int64_t P = clip_patch_size(&m->clip);
    float patch[MAX_PATCH];
    for (int i = 0; i < file->latents.ndim; i++) hash = mix(hash, file->latents.n[i]);
    for (int64_t k = 0; k < HASHED_SAMPLES; k++) {
        const int64_t at = (n - 1) * k / (HASHED_SAMPLES - 1);
        const ClipSample s = clip_sample(file, m, at / m->max_positions);
        clip_sample_patch(&s, at % m->max_positions, patch);
        for (int64_t i = 0; i < P; i++) {
            uint32_t bits;
            memcpy(&bits, &patch[i], sizeof bits);
            hash = mix(hash, bits);
        }
    }
    return hash;
}

uint64_t dataset_fingerprint(const Dataset *d)
{
    uint64_t hash = mix(0x5368656166u, d->settings.n_paths);
    for (int f = 0; dataset_has_clips(d) && f < d->settings.n_paths; f++)
        hash = mix_clips(hash, &d->settings.clip_file[f], d->settings.model);
    if (dataset_has_clips(d)) return hash;
    for (int f = 0; f < d->settings.n_paths; f++) hash = mix_file(hash, &d->file[f]);
    return hash;
}

Err dataset_fill_clip(const Dataset *d, int64_t cursor, const ClipRows *in, int64_t clip)
{
    const DatasetSettings *s = &d->settings;
    const int64_t sample = dataset_sample(d, cursor);
    int f = 0;
    while (d->first[f + 1] <= sample) f++;
    const ClipSample at = clip_sample(&s->clip_file[f], s->model, sample - d->first[f]);
    clip_fill(s->model,
              &(ClipSource){.patch = clip_sample_patch,
                            .text = clip_sample_text,
                            .context = &at,
                            .seed = s->seed,
                            .number = cursor},
              in, clip);
    return map_check();
}
