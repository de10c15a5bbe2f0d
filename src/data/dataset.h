/* dataset.h -- token files as one stream of samples, in an order that every rank can compute.
 *
 *     file 0                file 1            concatenated; a file's beginning is a document border
 *     |a a a a a|b b|c c c c c c|d d d d d|
 *     |sample 0 . . .|sample 1 . . .|sample 2 .      a new sample every seq_len tokens
 *
 * Sample i has the tokens [i T, i T + T), T = seq_len. The target of a token is the next token, so
 * a sample reads one token more. The last sample of an epoch may be short; the rows past its end
 * have weight 0. Every token except the first of the stream is a target once per epoch.
 *
 * With `pack`, documents in a sample do not attend to each other: key ranges and positions restart
 * at each border. A target across a border has weight 0, because it cannot be predicted. The
 * exception is the end-of-text token that starts the next document, from which a model learns to
 * stop. Without `pack`, a sample is one document.
 *
 * Everything is a function of the sample's number. The order of an epoch is a keyed permutation of
 * the sample numbers. One cursor (samples since the start of the run) is therefore the whole state,
 * and any rank can read any part of cursor .. cursor + batch.global. A stream is identified by
 * (fingerprint, seq_len, pack, seed).
 *
 * A dataset of clips (data/clips.h) has the same order and cursor; a sample is a clip. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "base/dtype.h"
#include "base/philox.h"
#include "data/clips.h"
#include "data/tokens.h"
#include "ir/graph.h"

typedef struct {
    const char *const *path;
    int n_paths;
    TokenFormat format;
    int64_t seq_len;
    bool pack;
    int64_t vocab;         /* vocabulary size of the model */
    uint64_t seed;         /* seed of the sample order */
    const char *tokenizer; /* tokenizer.json that encodes text and JSONL; NULL: bytes */
    int threads;           /* that encode; 0: one */
    /* Of a model of clips, instead of tokens: [n_paths] files, open and checked; path, n_paths and
     * seed are used too. */
    const ClipFile *clip_file;
    const ModelConfig *model;
} DatasetSettings;

typedef struct {
    DatasetSettings settings;
    Tokens *file;
    int64_t *first; /* [n_paths + 1] position of each file's first token in the stream */
    int64_t n_tokens, n_samples;
    int n_encoded; /* files that the tokenizer encoded */
    /* Of clips, first[] counts samples, and file is NULL. */
} Dataset;

/* Local. Paths must outlive *out. ERR_CONFIG if there is nothing to learn, or if bytes exceed
 * vocab. ERR_CHECK for an id outside of vocab: found now in streams up to 2^28 tokens, else when a
 * sample is filled. */
Err dataset_open(const DatasetSettings *settings, Arena *a, Dataset *out);
void dataset_close(Dataset *d);
static inline bool dataset_has_clips(const Dataset *d) { return d->settings.clip_file != NULL; }

/* Local. Returns the sample at the cursor, in [0, n_samples). O(1). */
int64_t dataset_sample(const Dataset *d, int64_t cursor);
/* Local. Hashes, for each file, the number of tokens and documents, the tokens at both ends and
 * some between. A text and the token file built from it have the same fingerprint, so one may
 * replace the other. */
uint64_t dataset_fingerprint(const Dataset *d);

/* The input arrays of a micro-batch. Each has the rows that the rank holds of it. */
typedef struct {
    int32_t *tokens, *targets, *positions;
    int32_t *ranges; /* [rows, 4]: ranges of rows of the micro-batch that are a row's keys */
    void *weights;
    DType weight_type; /* F32 or F64 */
    /* [N_INPUTS]: rows of the micro-batch in each array, ascending; NULL: all */
    const HeldSpans *held;
} InputRows;

/* Local. Writes the seq_len rows of a sample, beginning at `row` of the micro-batch, to the arrays
 * that hold them; reads no other tokens. A query attends to at most `window` keys, itself included;
 * 0: to all. ERR_CHECK for an id outside of the vocabulary, ERR_IO if a file has been truncated.
 * O(rows held), plus O(log documents) per border. */
Err dataset_fill(const Dataset *d, int64_t sample, int64_t window, const InputRows *in,
                 int64_t row);
/* Local. The same for a dataset of clips: writes clip `clip` of the micro-batch from the sample at
 * the cursor, with the noise of this cursor. ERR_IO if a file has been truncated. */
Err dataset_fill_clip(const Dataset *d, int64_t cursor, const ClipRows *in, int64_t clip);

#endif
