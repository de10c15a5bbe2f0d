/* unit.h -- a model: kinds of units, units, and the parameters that they hold.
 *
 *     kinds   embed          layer                          head
 *     units   embed    layer.0  layer.1  ...  layer.31      head
 *
 * Layers may be of several kinds, in any order. Units of one kind share a graph, and later
 * programs. A unit's parameters are stored in packs, back to back, in the order in which the graph
 * declares them. A pack is gathered, reduced, updated and sharded as a whole, over the axes of one
 * view of the mesh. Most units have one; one with experts has two:
 *
 *     packs   0: embed   1: layer.0, norms and attention   2: layer.0, experts   3: layer.1, ...
 *     view    dense      dense                             expert                dense
 *
 * A coded parameter is one that GEMMs in FP8 alone read. Its pack has codes of 8 bits in place of
 * weights, which every list makes once from the master weights, and scales beside it.
 *
 * A parameter that two units hold (tied weights) is in a pack of the first. If the two are on
 * different stages of a pipeline, each has a copy in its own pack:
 *
 *     one stage   embed: wte        head: norm (and wte, in the pack of embed)
 *     two         embed: wte        head: norm, wte: a copy, same values, summed gradients */
#ifndef IR_UNIT_H
#define IR_UNIT_H

#include "ir/graph.h"

enum { MAX_KINDS = 16, MAX_HOLDERS = 4 };

typedef struct {
    const char *name; /* whole, as in Hugging Face */
    ParamInfo info;
    int64_t count;
    int pack, pack_index;               /* the pack, of holder[0], and the index in it */
    int n_holders, holder[MAX_HOLDERS]; /* units */
    int copy_of;                        /* its original, on another stage; -1: none */
    bool is_shared;                     /* has copies on other stages, or is one */
} Param;

typedef struct {
    const char *name; /* "layer.3" */
    int kind;         /* of Model.kind */
    int n_params;
    int32_t *param;          /* of the model, in the order of the kind's */
    int first_pack, n_packs; /* its own; 0 if all of its parameters are in packs of other units */
    int64_t count;           /* elements of its own packs */
} Unit;

/* The types of a pack: of the weights that programs read, E4M3 if they are coded; of gradients,
 * master weights and moments. */
typedef struct {
    DType use, wide;
} PackTypes;

/* Packs are numbered by unit. */
typedef struct {
    int unit; /* the owner */
    int view; /* of the mesh: that of all its parameters */
    ParamRule rule;
    PackTypes type;
    int n_params;
    int32_t *param; /* of the model, in the order of the pack */
    int64_t count;  /* elements */
} Pack;

typedef struct {
    const char *name;
    Arena *arena;
    DType dtype;
    int64_t rows;       /* most tokens of a micro-batch */
    int64_t width;      /* of the stream */
    int64_t logit_rows; /* sessions: most rows of a call whose logits are requested; else 0 */
    int n_kinds, n_units, n_params, cap_units, cap_params;
    Graph kind[MAX_KINDS]; /* in the order of their first units */
    Unit *unit;
    Param *param;
    int n_packs;
    Pack *pack;       /* [cap_params] */
    int32_t *by_name; /* [n_by_name]: hash table of parameters + 1; 0: empty */
    int n_by_name;    /* a power of two, at least twice cap_params */
} Model;

/* Local. True if programs read codes of the weights. */
static inline bool pack_is_coded(const Pack *p) { return dtype_is_fp8(p->type.use); }

/* Local. Reserves memory for that many units and parameters. */
Err model_open(Model *m, const char *name, int cap_units, int cap_params, Arena *arena);
/* Local. Adds a unit of that kind. Its parameters are named prefix + the name in the graph. A
 * parameter that the model has already is held by both. ERR_CHECK if the two differ in shape. */
Err model_add_unit(Model *m, int kind, const char *name, const char *prefix);

/* Local. Makes the packs again, after Param.info.pack, view or coded has changed. */
Err model_make_packs(Model *m);
/* Local. Parameter `param` of a kind is of another view of the mesh; packs are made again. */
Err model_set_view(Model *m, int kind, int param, int view);
/* Local. stage: [n_units]. If the holders of a parameter are on several stages, those on other
 * stages than the first holder get a copy. */
Err model_copy_params(Model *m, const int16_t *stage);
/* Local. True if the parameter has copies on other stages or is one. */
bool model_is_shared(const Model *m, int param);

/* Local. The rows of an input in a micro-batch, and the elements of a row; no rows: no unit reads
 * it. Sessions have rows of all inputs that they write. */
typedef struct {
    int64_t rows, extent;
} InputShape;
InputShape model_input(const Model *m, Input which);

/* Local. The parameter of that name, or -1; for copies, their original. */
int model_find_param(const Model *m, const char *name);
/* Local. "layer.3.attn.in": the name of a unit's value, in `buffer`, which is returned. Values of
 * two units never share one. Only tests call it. */
enum { VALUE_NAME_BYTES = 256 };
const char *model_value_name(const Model *m, int unit, const char *name, char *buffer);
/* Local. Elements of all parameters; tied ones and copies count once. */
int64_t model_param_count(const Model *m);

#endif
