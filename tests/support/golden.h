/* golden.h -- losses and gradients that another library computed: reads tests/golden/NAME.json.
 *
 *     Golden g;
 *     golden_load("qwen3", arena, &g)
 *     golden_write_config(&g, "config.json")        a file for model.name
 *     w[i] = golden_weight("model.norm.weight", i)  every weight, by formula, exact in f32
 *     ... train on g.tokens, g.targets, g.weights ...
 *     compare with g.loss, g.logit[], g.param[].value[]
 *
 * `batch` sequences of T tokens are concatenated, so token n is position n % T of sequence n / T.
 * The loss is the sum over n of weights[n] * cross entropy(logits[n], targets[n]). Names, shapes
 * and element indices are those of a Hugging Face checkpoint: GPT-2's linear weights are [in, out]
 * there, and its q, k and v are one tensor. Tied parameters are listed once. */
#ifndef SUPPORT_GOLDEN_H
#define SUPPORT_GOLDEN_H

#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

#ifndef GOLDEN_DIR /* the build defines the full path; this works from the top of the repository */
#define GOLDEN_DIR "tests/golden"
#endif

enum { GOLDEN_MAX_DIMS = 2 };

typedef struct {
    const char *name;
    int ndim;
    int64_t dim[GOLDEN_MAX_DIMS], n_elements;
    double norm, max; /* of the whole gradient: 2-norm, largest absolute value */
    int64_t n_entries;
    int64_t *index; /* [n_entries] row-major, ascending, the first and the last element included */
    double *value;  /* [n_entries] of the gradient */
} GoldenParam;

typedef struct {
    int64_t token, id; /* row n and column of the logits */
    double value;
} GoldenLogit;

typedef struct {
    const char *param;
    int64_t index;
    double value; /* of the weight, in the script that made the file */
} GoldenSpot;

typedef struct {
    const char *name, *config; /* config: text of config.json */
    int64_t T, batch, vocab, n_tokens;
    int32_t *tokens, *targets, *positions; /* [n_tokens] */
    int32_t *key_lo; /* [n_tokens] position t attends to positions key_lo .. t of its sequence */
    double *weights; /* [n_tokens] */
    double loss;
    int64_t n_logits, n_params, n_spots;
    GoldenLogit *logit;
    GoldenParam *param;
    GoldenSpot *spot;
} Golden;

/* All golden files; ends with NULL. */
extern const char *const golden_names[];

/* Local. Reads GOLDEN_DIR/NAME.json. ERR_IO if it cannot be read, ERR_CHECK if its parts are
 * inconsistent; the message names the file and the place. */
Err golden_load(const char *name, Arena *arena, Golden *out);
/* Local. The same from any path, which becomes the name and must outlive the struct. */
Err golden_load_file(const char *path, Arena *arena, Golden *out);
/* Local. Writes the configuration as a file for the model reader. */
Err golden_write_config(const Golden *g, const char *path);
/* Local. NULL: no parameter of that name. */
const GoldenParam *golden_param(const Golden *g, const char *name);
/* Local. Element `index` of the named weight; any name and index have a value. */
double golden_weight(const char *name, int64_t index);
/* Local. ranges[n_tokens, 4] for the attention kernel, with keys numbered over the whole batch: lo,
 * hi, and an empty second range. */
void golden_ranges(const Golden *g, int32_t *ranges);

#endif
