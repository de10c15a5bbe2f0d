/* plan_file.h -- plan files: the distribution of one run over its ranks, as YAML.
 *
 *     plan:                                     the run that it was made for
 *       version: 1
 *       model: 9d1c22a40b7e6f35                 hash of the model's sizes
 *       precision: bf16
 *       seq_len: 8192
 *       batch: 128                              sequences per step
 *       ranks: 64
 *     mesh:                                     keys of the run file
 *       dp: 8
 *       tp: 8
 *     batch:
 *       micro: 2
 *     parallel:
 *       sequence: true
 *     layers:                                   every layer once, in order
 *       0-15: [zero 3, recompute full]          and offload, with names of values
 *       16-31: [zero 1, recompute none]
 *       head: [zero 0]                          embed and head: else as the layers beside them
 *     predicted:                                for these choices alone
 *       choices: 1f0a...                        hash of all choices above
 *       cluster: h100-sxm
 *       step_ms: 812.5
 *       bound_ms: 812.5                         no plan of the space is faster than this
 *       memory_bytes: 61203283968               of the rank that needs most
 *
 * `sheaf plan` writes it, people edit it. It replaces mesh.*, parallel.* and batch.micro of the run
 * file; a key that it leaves out has its default. An argument may repeat a value of the plan, but
 * not change it. A plan for another model, batch or number of ranks is refused. Predictions are
 * used only while their hash is that of the choices. */
#ifndef CLI_CONFIG_PLAN_FILE_H
#define CLI_CONFIG_PLAN_FILE_H

#include "base/text.h"
#include "cli/config/keys.h"

/* The run that a plan is for. */
typedef struct {
    uint64_t model;
    const char *precision;
    int64_t seq_len, batch, ranks;
    int line; /* of the section, for messages */
} PlanTarget;

typedef struct {
    const char *cluster;
    double step_ms, bound_ms;
    int64_t memory_bytes;
} PlanPrediction;

/* The words of one entry of `layers`, in the order in which a plan is written. */
enum { WORD_ZERO, WORD_WEIGHTS, WORD_RECOMPUTE, WORD_OFFLOAD, N_PLAN_WORDS };

typedef struct {
    int64_t first, last;
    const char *word[N_PLAN_WORDS]; /* as the values of the keys are written */
    const char *origin;             /* "plan.yaml:17"; NULL: the entry is not there */
} PlanLayers;

typedef struct PlanFile {
    const char *path;
    PlanTarget target;
    KeyValue *at; /* [n]: keys of mesh, batch and parallel; then those of the layers */
    int n;
    PlanLayers *layers;
    int n_layers; /* entries */
    PlanLayers embed, head;
    uint64_t choices; /* of the section predicted; 0: the plan has none */
    PlanPrediction predicted;
    bool is_current; /* the predictions are for these choices; set by plan_file_check */
} PlanFile;

/* Local. ERR_CONFIG names the file, the line and the reason. text: that of the plan, which has not
 * been written yet; NULL: the file is read. */
Err plan_file_read(const char *path, const char *text, Arena *a, PlanFile *out);
/* Local. The plan of a settled configuration. `predicted` may be NULL. */
Err plan_file_text(const Config *c, const ModelConfig *model, const PlanPrediction *predicted,
                   Arena *temp, Text *out);
/* Local. True for the keys that a plan decides: mesh.*, parallel.* and batch.micro. */
bool plan_decides(KeyId key);
/* Local. ERR_CONFIG unless the configuration, loaded with its plan, is the one that the plan was
 * made for. Clears the predictions of a plan that was edited. */
Err plan_file_check(const Config *c, const ModelConfig *model, Arena *temp);
/* Local. A hash of the model's architecture. */
Err plan_model_hash(const ModelConfig *model, Arena *temp, uint64_t *out);
/* Local. A hash of the values of all keys that a plan decides; predictions are for these. */
Err plan_choices_hash(const Config *c, Arena *temp, uint64_t *out);
/* Local. The key of a word of `layers`: parallel.zero, parallel.zero_weights, parallel.recompute,
 * parallel.offload. */
KeyId plan_word_key(int word);

#endif
