/* build.h -- builds the graphs of a model from its configuration, in global shapes without ranks.
 *
 * A model has an embedding, layers and a head. Each kind of unit is one graph; the layers of a
 * family may be of several kinds.
 *
 *     tokens [T] - embed - x [T, D] - layer.0 - x [T, D] - ... - head - loss, or logits [A, V]
 *
 *     T rows of a micro-batch or call, D width, V vocabulary, A rows whose logits are requested */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "ir/build.h"
#include "ir/unit.h"
#include "model/config.h"

/* A micro-batch: `sequences` sequences of `seq_len` tokens, as T = sequences * seq_len rows. */
typedef struct {
    int64_t sequences, seq_len;
} BatchShape;

/* Local. Builds the units embed, layer.0, ..., head, and the kinds that they have. */
Err model_build(const ModelConfig *c, DType dtype, BatchShape batch, Arena *arena, Model *out);

/* One call of an inference session. A call processes rows of any of its sequences, which grow from
 * call to call, and returns the logits of some of these rows. */
typedef struct {
    int64_t rows;       /* maximum per call */
    int64_t logit_rows; /* maximum number of these rows whose logits are requested */
    int64_t sequences;  /* maximum number that the session holds at once */
    int64_t context;    /* maximum tokens of a sequence */
    bool cached;        /* a KV cache persists between calls; else a call has whole sequences */
} SessionShape;

/* Local. Builds the same kinds and units, but the head outputs logits instead of the loss. */
Err model_build_session(const ModelConfig *c, DType dtype, const SessionShape *shape, Arena *arena,
                        Model *out);

/* ---- model families: each lists its kinds of units and names its parameters ---- */

typedef struct {
    const ModelConfig *config;
    Dim rows;       /* tokens, T; the runtime scalar SLOT_ROWS bounds the live ones */
    Dim logit_rows; /* rows whose logits the head outputs, A; cap 0: the head outputs the loss */
    Dim clips;      /* of a model of clips: T / (frames * places) */
    int64_t span;   /* maximum number of keys that a query attends to */
} ModelBuilder;

typedef struct {
    const char *name; /* unique in the family: "embed", "layer", "head" */
    void (*build)(Graph *g, const ModelBuilder *b);
} UnitKind;

/* The kinds of a family: the embedding first, the head last, kinds of layers between. A kind that
 * no layer of a configuration has is not built. */
typedef struct FamilyBuilder {
    const UnitKind *kind;
    int n_kinds;                                           /* 3 to MAX_KINDS */
    int (*kind_of_layer)(const ModelConfig *c, int layer); /* NULL: every layer has kind 1 */
    const char *layer_prefix;                              /* for example "model.layers.%d." */
} FamilyBuilder;

extern const FamilyBuilder gpt2_builder, llama_builder, stdit_builder;

/* head_in returns the input of a head: the residual stream [T, D], or its requested rows [A, D].
 * head_out ends a head. It applies the weight w [V, D] and adds the token loss, or outputs logits
 * [A, V]. */
Value head_in(Graph *g, const ModelBuilder *b);
void head_out(Graph *g, const ModelBuilder *b, Value x, Value w);

/* experts.c: the mixture of experts of a layer, [T, D] -> [T, D]; and which layers have one. */
Value mixture_of_experts(Graph *g, const ModelBuilder *b, Value a);
bool layer_has_experts(const ModelConfig *c, int64_t layer);
/* Local. True if some layer has. */
bool model_has_experts(const ModelConfig *c);

/* Declare a parameter: a weight [out, in] with normal initialization, or a vector [n]. */
Value weight2(Graph *g, const char *name, int64_t out, int64_t in, double std);
Value vector(Graph *g, const char *name, int64_t n, Init init);

/* ---- names.c: location of a parameter in a Hugging Face file ---- */

/* One tensor of a file. The experts of a layer are one parameter [E, out, in] here and E tensors
 * [out, in] there; other parameters are one tensor, or a part of one. */
typedef struct {
    char name[192];  /* tensor name in the file */
    bool transposed; /* the file stores [in, out]; we store [out, in] */
    int64_t from;    /* first row of this parameter in the file's tensor, in our orientation */
    int64_t rows;    /* rows of the whole tensor in the file, in our orientation */
} HfPlace;

/* Local. The number of tensors that a parameter is in files. */
int64_t hf_tensors(const Param *p);
/* Local. Tensor i of them. GPT-2 files store q, k and v in one transposed tensor. The other
 * families use our names and shapes, apart from experts. */
HfPlace hf_place(const ModelConfig *c, const Param *p, int64_t i);
/* Local. Returns the index of our element (row, column) in the file's tensor. Vectors have column
 * 0; rows of an expert count within it. */
int64_t hf_index(const HfPlace *place, const Param *p, int64_t row, int64_t column);

#endif
