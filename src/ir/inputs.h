/* inputs.h -- the data of a micro-batch, as a table: type, extent and writer of each input.
 *
 * Rows are tokens: sequences are stored one after another, and `ranges` has the keys that each row
 * sees. To add an input: a row of inputs.def, and a writer. */
#ifndef IR_INPUTS_H
#define IR_INPUTS_H

#include <stdbool.h>
#include "base/dtype.h"

typedef enum {
#define INPUT(ID, name, TYPE, extent, WRITER) INPUT_##ID,
#include "ir/inputs.def"
#undef INPUT
    N_INPUTS
} Input;

typedef enum { INPUT_TYPE_INDEX, INPUT_TYPE_WIDE } InputType;
typedef enum { WRITTEN_BY_LOADER, WRITTEN_BY_SESSION } InputWriter;

typedef struct {
    const char *name; /* of its values in graphs */
    InputType type;
    int extent; /* elements of a row; 0: the graph declares it */
    InputWriter writer;
} InputInfo;

const InputInfo *input_info(Input which);
const char *input_name(Input which);
/* Local. Its element type in a model that computes in `compute`. */
DType input_dtype(Input which, DType compute);

#endif
