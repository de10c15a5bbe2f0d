/* dataset.h -- files of tokens as one stream, cut into samples, in an order that any rank can
 * compute.
 *
 *     file 0                file 1            laid end to end; a file's beginning is a border
 *     |a a a a a|b b|c c c c c c|d d d d d|
 *     |sample 0 . . .|sample 1 . . .|sample 2 .      a cut every seq_len tokens
 *
 * Sample i is the tokens [i T, i T + T), T = seq_len; the target of each is the token after it, so
 * a sample reads one token more. The last sample of an epoch may be short: rows past its end weigh
 * nothing. No token is left out, and each is a target once an epoch (but the very first).
 *
 * With `pack`, documents in a sample do not see each other: attention's ranges and positions start
 * anew at each border, and a target across a border weighs 0, for it cannot be known; unless it is
 * the end-of-text token that starts the next document, which is how a model learns to stop. Without
 * `pack` a sample is plain: it sees itself from its first token on.
 *
 * All is a function of the sample's number. The order of an epoch is a keyed permutation of those,
 * so one cursor (samples since the start of the run) is the whole state, and who reads which part
 * of cursor .. cursor + batch.global changes nothing. What identifies a stream is (fingerprint,
 * seq_len, pack, seed). */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "base/dtype.h"
#include "base/philox.h"
#include "data/tokens.h"

typedef struct {
    const char *const *path;
    int n_paths;
    TokenFormat format;
    int64_t seq_len;
    bool pack;
    int64_t vocab; /* of the model */
    uint64_t seed; /* of the order */
} DatasetSettings;

typedef struct {
    DatasetSettings settings;
    Tokens *file;
    int64_t *first; /* [n_paths + 1] place in the stream of each file's first token */
    int64_t n_tokens, n_samples;
} Dataset;

/* Local. Paths must stay. ERR_CONFIG when there is nothing to learn, or bytes do not fit vocab;
 * ERR_CHECK for a token that is not in it (looked for now in up to 2^28 tokens, else when a sample
 * is filled). */
Err dataset_open(const DatasetSettings *settings, Arena *a, Dataset *out);
void dataset_close(Dataset *d);

/* Local. The sample that the cursor stands for, in [0, n_samples). O(1). */
int64_t dataset_sample(const Dataset *d, int64_t cursor);
/* Local. A hash of the tokens: their number and documents in each file, its ends, and some between.
 * The same for a text and for the token file made of it, so one may take the place of the other. */
uint64_t dataset_fingerprint(const Dataset *d);

/* Where the inputs of a micro-batch lie, row 0 first. */
typedef struct {
    int32_t *tokens, *targets, *positions;
    int32_t *ranges; /* [rows, 4]: keys that a row sees, as rows */
    void *weights;
    DType weight_type; /* F32 or F64 */
} InputRows;

/* Local. Writes the seq_len rows of a sample from `row` on. A query sees `window` keys at most, its
 * own counted; 0: all. ERR_CHECK for a token that is not in the vocabulary. O(seq_len), and O(log
 * documents) for each border. */
Err dataset_fill(const Dataset *d, int64_t sample, int64_t window, const InputRows *in,
                 int64_t row);

#endif
