/* dtype.h -- element types. */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { F64, F32, BF16, I32, I64, N_DTYPES } DType;

static inline size_t dtype_bytes(DType t)
{
    static const uint8_t bytes[N_DTYPES] = {8, 4, 2, 4, 8};
    return bytes[t];
}

static inline const char *dtype_name(DType t)
{
    static const char *const name[N_DTYPES] = {"f64", "f32", "bf16", "i32", "i64"};
    return name[t];
}

/* The type of sums, statistics and losses of values of type t. */
static inline DType dtype_wide(DType t) { return t == F64 ? F64 : F32; }

#endif
