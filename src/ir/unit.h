/* unit.h -- a model: kinds of unit, units, and the parameters that they hold.
 *
 *     kinds   embed          layer                          head
 *     units   embed    layer.0  layer.1  ...  layer.31      head
 *
 * Units of one kind share a graph, and later a program. A unit's parameters lie back to back in its
 * pack, in the order in which the graph names them. A parameter that two units hold (tied weights)
 * lies in the pack of the first; where the two are on different stages of a pipeline, each has a copy
 * in its own pack:
 *
 *     one stage   embed: wte        head: norm (and wte, in the pack of embed)
 *     two         embed: wte        head: norm, wte, a copy: same name, same values, summed gradients */
#ifndef IR_UNIT_H
#define IR_UNIT_H

#include "ir/graph.h"

enum { MAX_KINDS = 4, MAX_HOLDERS = 4 };

typedef struct {
    const char *name; /* whole, as Hugging Face spells it */
    ParamInfo info;
    int64_t count;
    int64_t pack_at;                    /* element offset in the pack of holder[0] */
    int n_holders, holder[MAX_HOLDERS]; /* units */
    int copy_of;                        /* a parameter that is on another stage; -1: it is none */
} Param;

typedef struct {
    const char *name; /* "layer.3" */
    int kind;
    int n_params;
    int32_t *param;     /* of the model, in the order of the kind's */
    int64_t pack_count; /* elements; parameters that lie in another unit's pack are not counted */
} Unit;

typedef struct {
    const char *name;
    Arena *arena;
    DType dtype;
    int64_t rows;  /* tokens of a micro-batch, at most */
    int64_t width; /* of the stream */
    int64_t asked; /* of a session: rows of a call whose logits may be asked for; else 0 */
    int n_kinds, n_units, n_params, cap_units, cap_params;
    Graph kind[MAX_KINDS];
    Unit *unit;
    Param *param;
} Model;

/* Local. Room for so many units and parameters. */
Err model_open(Model *m, const char *name, int cap_units, int cap_params, Arena *arena);
/* Local. A unit of that kind. Its parameters are called prefix + the name in the graph; one that
 * the model has already is held by both. ERR_CHECK when the two differ in shape. */
Err model_add_unit(Model *m, int kind, const char *name, const char *prefix);

/* Local. stage: [n_units]. Where holders of a parameter are on several stages, those on others than
 * the first holder's get a copy. */
Err model_copy_params(Model *m, const int16_t *stage);
/* Local. Has the parameter copies on other stages, or is it one? */
bool model_is_shared(const Model *m, int param);

/* Local. The parameter of that name, or -1; of copies, the one that they are of. */
int model_find_param(const Model *m, const char *name);
/* Local. "layer.3.attn.in": a value of a unit by its name within the graph, in `buffer`, which is
 * returned. Values of two units never share one. */
enum { VALUE_NAME_BYTES = 256 };
const char *model_value_name(const Model *m, int unit, const char *name, char *buffer);
/* Local. Elements of all parameters, tied ones and copies counted once. */
int64_t model_param_count(const Model *m);

#endif
