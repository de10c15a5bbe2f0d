/* inputs.c -- the table of inputs. */
#include "ir/inputs.h"

const InputInfo *input_info(Input which)
{
    static const InputInfo info[N_INPUTS] = {
#define INPUT(ID, name, TYPE, extent, WRITER)                                                      \
    {#name, INPUT_TYPE_##TYPE, extent, WRITTEN_BY_##WRITER},
#include "ir/inputs.def"
#undef INPUT
    };
    return &info[which];
}

const char *input_name(Input which) { return input_info(which)->name; }

DType input_dtype(Input which, DType compute)
{
    return input_info(which)->type == INPUT_TYPE_WIDE ? dtype_wide(compute) : I32;
}
