/* tensors.h -- the state of a job as logical tensors, and the boxes of them that each rank has.
 *
 *     parameter "layers.0.mlp.up_proj.weight" [12, 8]  ->  three tensors: weight, moment1, moment2
 *     (sgd: one), each in the wide type
 *
 *     dp=2 zero=1     rank 0: rows 0..6 and half of row 7       boxes [0,7) x [0,8)  [7,8) x [0,4)
 *                     rank 1: the rest                                [7,8) x [4,8)  [8,12) x [0,8)
 *
 * A box is in the parameter's coordinates, independent of packs, homes and ranks. The boxes that
 * ranks own tile every tensor, each element once. The boxes that they hold may overlap (copies).
 * Both follow from the homes in the linked program of any rank, so every rank can compute what any
 * other has. */
#ifndef STATE_TENSORS_H
#define STATE_TENSORS_H

#include "layout/moves.h"
#include "schedule/link/link.h"

typedef enum { STATE_WEIGHT, STATE_MOMENT1, STATE_MOMENT2, N_STATE_ROLES } StateRole;

typedef struct {
    const char *name; /* the model's name of the parameter */
    StateRole role;
    DType dtype; /* F32 or F64 */
    Shape shape;
} StateTensor;

typedef struct {
    int n;
    StateTensor *tensor; /* by parameter, then by role; without copies of tied parameters */
} StateTensors;

/* A box of a tensor in one rank's home. */
typedef struct {
    int tensor, pack;
    Box box;
    int64_t at;               /* offset of its first element in the rank's home of the pack */
    int64_t stride[MAX_DIMS]; /* strides of the home's storage, in elements */
} StatePart;

typedef struct {
    int64_t n;
    StatePart *part; /* by tensor, then by box, row-major */
} StateParts;

/* Local. Lists all tensors of the job; the same on every rank. */
Err state_tensors(const LinkedProgram *lp, Arena *a, StateTensors *out);
/* Local. Lists the boxes in the home of a rank of the mesh, or with `owned` only those that it
 * writes. The linked program may be another rank's. */
Err state_parts(const LinkedProgram *lp, int rank, bool owned, Arena *a, StateParts *out);

/* Local. True for the marks of delayed scaling (base/fp8.h), state of training that models lack. */
bool state_is_marks(const StateTensor *t);
/* The names "weight", "moment1", "moment2"; -1: unknown role. */
const char *state_role_name(StateRole role);
int state_role_of(const char *name);

/* ---- chunks: the unit of hashing and reading ---- */

/* A box is split into chunks that are boxes too, and contiguous in its row-major order. A chunk
 * consists of whole slices of the first dim whose slices have at most `max` elements, as many
 * slices as fit.
 *
 *     box [0,7) x [0,8), at most 20 elements:  2 rows, 2 rows, 2 rows, 1 row */
int64_t chunk_count(const Box *box, int64_t max);
/* Local. Returns chunk i; *before: the elements of the box before it. */
Box chunk_at(const Box *box, int64_t max, int64_t i, int64_t *before);

#endif
