/* choices.h -- products as cuBLASLt sees them, and the algorithm each is run by.
 *
 * A Shape is all that an algorithm may depend on. A context keeps one Choice for each shape it has
 * met: cuBLASLt's first suggestion, the fastest of several by the clock, or what a file says. */
#ifndef DEVICE_CUDA_CHOICES_H
#define DEVICE_CUDA_CHOICES_H

#include "device/cuda/cuda.h"

/* Column-major: d[rows, columns] = x[rows, depth] y[depth, columns]. All i64, so that shapes are
 * compared as bytes and written as numbers. */
typedef struct {
    int64_t rows, columns, depth;
    int64_t x_step, y_step, d_step;    /* from column to column, as stored */
    int64_t x_turned, y_turned;        /* stored transposed */
    int64_t type, out_type;            /* DType of x and y, of d */
    int64_t bias, adds;                /* an epilogue; d is kept */
    int64_t x_align, y_align, d_align; /* bytes, at most 16 */
} Shape;

enum { SHAPE_NUMBERS = sizeof(Shape) / sizeof(int64_t) };

typedef struct {
    Shape shape;
    cublasLtMatmulAlgo_t algo;
    bool known, possible; /* has an algorithm been looked for; was there one */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t x, y, d;
} Choice;

/* What a product is run with. */
typedef struct {
    const void *x, *y, *bias;
    void *d;
    float keep;
} Operands;

struct Choices {
    Choice *choice;
    int n, room;
    bool measure;
};

/* Local. The choice for a shape, made now if it is new; `possible` says whether it can be run. The
 * pointer holds until the next call. */
Err choices_find(DeviceQueue *q, const Shape *shape, const Operands *with, Choice **out);
/* Local. What is known of a shape, or NULL; and what a file says of it. */
Choice *choices_known(Choices *all, const Shape *shape);
Err choices_put(Choices *all, const Shape *shape, const cublasLtMatmulAlgo_t *algo);
/* Local. Puts the product into the queue. */
Err choice_run(DeviceQueue *q, const Choice *c, const Operands *with);

#endif
