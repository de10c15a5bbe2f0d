/* build.h -- models from their configurations: what is computed, in global shapes, without a word
 * about ranks. */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "ir/build.h"
#include "ir/unit.h"
#include "model/config.h"

/* A micro-batch: `sequences` of `seq_len` tokens, one after another as rows. */
typedef struct {
    int64_t sequences, seq_len;
} BatchShape;

/* Local. Kinds embed, layer and head; units embed, layer.0 .., head. */
Err model_build(const ModelConfig *c, DType dtype, BatchShape batch, Arena *arena, Model *out);

/* A call of a session: rows of any of its sequences, which grow from call to call, and the logits of some of them. */
typedef struct {
    int64_t rows;      /* of a call, at most */
    int64_t asked;     /* of these, rows whose logits are asked for, at most */
    int64_t sequences; /* that the session holds at once */
    int64_t context;   /* tokens of a sequence, at most */
    bool cached;       /* keys and values stay from call to call; else a call has whole sequences */
} SessionShape;

/* Local. The same kinds and units; the head hands on logits instead of the loss. */
Err model_build_session(const ModelConfig *c, DType dtype, const SessionShape *shape, Arena *arena,
                        Model *out);

/* ---- the families: each builds the three graphs and says how parameters are called ---- */

typedef struct {
    const ModelConfig *config;
    Dim rows;     /* tokens; bounded by those that are live */
    Dim asked;    /* rows whose logits the head hands on; cap 0: it hands on the loss */
    int64_t span; /* keys that a query sees at most */
} Build;

typedef struct {
    void (*embed)(Graph *g, const Build *b);
    void (*layer)(Graph *g, const Build *b);
    void (*head)(Graph *g, const Build *b);
    const char *layer_prefix; /* "model.layers.%d." */
} FamilyBuilder;

extern const FamilyBuilder gpt2_builder, llama_builder;

/* What a head starts from, the stream or the rows that are asked for; and how it ends, in the loss or in their logits. */
Value head_in(Graph *g, const Build *b);
void head_out(Graph *g, const Build *b, Value x, Value w);

/* Parameters as the builders ask for them. */
Value weight2(Graph *g, const char *name, int64_t out, int64_t in, double std);
Value vector(Graph *g, const char *name, int64_t n, Init init);

/* ---- names.c: where a parameter is found in a Hugging Face file ---- */

typedef struct {
    char name[192];  /* of the tensor there */
    bool transposed; /* stored [in, out] there, [out, in] here */
    int64_t from;    /* first row, in our orientation, of the part that is this parameter */
    int64_t rows;    /* rows of the whole tensor there, in our orientation */
} HfPlace;

/* Local. GPT-2 keeps q, k and v in one transposed tensor; the other families are as here. */
HfPlace hf_place(const ModelConfig *c, const Param *p);
/* Local. Our element (row, column) as an index into the tensor there; vectors have column 0. */
int64_t hf_index(const HfPlace *place, const Param *p, int64_t row, int64_t column);

#endif
