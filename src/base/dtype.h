/* dtype.h -- element types: a row each, which code reads instead of comparing types.
 *
 *     type    bytes  wide  digits    wide: of sums, statistics and losses of values of the type
 *     f64     8      f64   53        digits: of the significand; rounding errs by 2^-digits at most
 *     bf16    2      f32   8
 *     e4m3    1      f32   4         e4m3, e5m2: fp8.h */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { F64, F32, BF16, E4M3, E5M2, I32, I64, N_DTYPES } DType;

typedef struct {
    const char *name;
    uint8_t bytes, digits; /* digits: 0 for integers */
    DType wide;
} DTypeRow;

static inline const DTypeRow *dtype_row(DType t)
{
    static const DTypeRow row[N_DTYPES] = {
        [F64] = {"f64", 8, 53, F64},  [F32] = {"f32", 4, 24, F32},  [BF16] = {"bf16", 2, 8, F32},
        [E4M3] = {"e4m3", 1, 4, F32}, [E5M2] = {"e5m2", 1, 3, F32}, [I32] = {"i32", 4, 0, F32},
        [I64] = {"i64", 8, 0, F32},
    };
    return &row[t];
}

static inline size_t dtype_bytes(DType t) { return dtype_row(t)->bytes; }
static inline const char *dtype_name(DType t) { return dtype_row(t)->name; }
/* The type of sums, statistics and losses of values of type t. */
static inline DType dtype_wide(DType t) { return dtype_row(t)->wide; }
/* True for floating types whose sums have another type. */
static inline bool dtype_is_narrow(DType t) { return dtype_row(t)->digits && dtype_wide(t) != t; }
/* True for the types of 8 bits, whose values have a scale beside them. */
static inline bool dtype_is_fp8(DType t) { return t == E4M3 || t == E5M2; }
static inline bool dtype_is_integer(DType t) { return dtype_row(t)->digits == 0; }

#endif
