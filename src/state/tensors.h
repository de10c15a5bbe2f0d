/* tensors.h -- the state of a job as logical tensors, and who has which boxes of them.
 *
 *     parameter "layers.0.mlp.up_proj.weight" [12, 8]  ->  three tensors: weight, moment1, moment2
 *     (sgd: one), each in the wide type
 *
 *     dp=2 zero=1     rank 0: rows 0..6 and half of row 7       boxes [0,7) x [0,8)  [7,8) x [0,4)
 *                     rank 1: the rest                                [7,8) x [4,8)  [8,12) x [0,8)
 *
 * A box is in the coordinates of the parameter: nothing of packs, homes or ranks is left in it. The
 * boxes that ranks own tile every tensor, each element once; the boxes that they hold may overlap
 * (copies). Both follow from the homes of the linked program of any one rank, so every rank can say
 * what any other has. */
#ifndef STATE_TENSORS_H
#define STATE_TENSORS_H

#include "layout/moves.h"
#include "schedule/link/link.h"

typedef enum { STATE_WEIGHT, STATE_MOMENT1, STATE_MOMENT2, N_STATE_ROLES } StateRole;

typedef struct {
    const char *name; /* of the parameter, as the model calls it */
    StateRole role;
    DType dtype; /* F32 or F64 */
    Shape shape;
} StateTensor;

typedef struct {
    int n;
    StateTensor *tensor; /* by parameter, then by role; no copies of tied parameters */
} StateTensors;

/* A box of a tensor that one rank has at home. */
typedef struct {
    int tensor, unit;
    Box box;
    int64_t at;               /* of its first element, in the rank's home of the unit */
    int64_t stride[MAX_DIMS]; /* of the home's storage, in elements */
} StatePart;

typedef struct {
    int64_t n;
    StatePart *part; /* by tensor, then by box, row-major */
} StateParts;

/* Local. All tensors of the job, the same on every rank. */
Err state_tensors(const LinkedProgram *lp, Arena *a, StateTensors *out);
/* Local. What a rank of the mesh has at home; `owned`: only what it writes. The linked program may
 * be another rank's. */
Err state_parts(const LinkedProgram *lp, int rank, bool owned, Arena *a, StateParts *out);

/* "weight", "moment1", "moment2"; -1: no such role */
const char *state_role_name(StateRole role);
int state_role_of(const char *name);

/* ---- chunks: what is hashed, and read, at once ---- */

/* A box is cut into chunks that are boxes too, and runs of its row-major elements: so many whole
 * slices of the first dim that it can be cut along, at most `most` elements each, at least one
 * slice; slices that are larger are cut in their turn.
 *
 *     box [0,7) x [0,8), at most 20 elements:  2 rows, 2 rows, 2 rows, 1 row */
int64_t chunk_count(const Box *box, int64_t max);
/* Local. The i-th, and how many elements of the box lie before it. */
Box chunk_at(const Box *box, int64_t max, int64_t i, int64_t *before);

#endif
