/* tiny.h -- small models for tests from the graph to the executor.
 *
 *     embed:  x = rows of a table, by token        any number of rows is live
 *     body:   y = a function of x from the test    one or several units of this kind
 *     head:   loss of x w^T                        w is random, so the gradient of y is random too
 *
 * The tokens of a micro-batch are all different, so a row of the table's gradient is a row of dx.
 * Dead rows hold invalid ids and NaN weights. */
#ifndef SUPPORT_TINY_H
#define SUPPORT_TINY_H

#include "compile/compile.h"
#include "ir/build.h"
#include "ir/unit.h"
#include "run/rank.h"

/* Element i of a contiguous tensor of f64 or f32. */
double real_get(const Tensor *t, int64_t i);
void real_set(const Tensor *t, int64_t i, double x);
/* A vector that decays or not, or a matrix (n1 > 0), as a parameter of a body. */
Value tiny_param(Graph *g, const char *name, int64_t n0, int64_t n1);

typedef struct {
    uint64_t seed;
    int64_t rows;      /* live rows */
    int64_t documents; /* number of documents, of uneven lengths; 0 counts as 1 */
    int64_t window;    /* maximum of keys per row; 0: those of its document up to itself */
    bool two;          /* a hole in the middle: two ranges of keys */
    int64_t ids, vocab, positions; /* upper bounds of tokens, targets, positions */
} TestBatch;

/* Fills all weights by (seed, name, element): 0.4 times a normal number, plus 1 for parameters that
 * start at 1. Gradient sums become NaN, moments 0. */
void rank_fill_weights(Rank *r, uint64_t seed);
void rank_fill_batch(Rank *r, int micro, const TestBatch *b);
/* Fills an arena with 0xFF, which is NaN. */
void rank_poison(Rank *r, ArenaId arena);

typedef Value (*TinyBody)(Graph *g, Dim rows, Value x);

typedef struct {
    TinyBody body;
    int bodies;   /* units of the body's kind; 0 counts as 1 */
    bool squares; /* the loss is the squared error of x w^T, not a cross entropy */
    DType dtype;
    int64_t rows, width; /* most rows; width of the stream */
    bool fixed;          /* every micro-batch has all rows */
    CompileOptions compile;
    int micros;
    bool one_by_one; /* a micro-batch's backward follows its forward; else all are in flight */
    bool split;      /* I right after the forward, every W at the end */
    bool bind;       /* begin with bind.0 */
    bool step;       /* end with norm and updates */
    OptimSettings optim;
} TinySpec;

enum { TINY_IDS = 29, TINY_VOCAB = 13, TINY_POSITIONS = 40, TINY_CLIPS = 3 };

typedef struct {
    TinySpec spec;
    Arena arena;
    Mesh mesh;
    Model model;
    Program program[MAX_KINDS];
    Schedule schedule;
    LinkedProgram linked;
    Rank rank;
} Tiny;

/* Local. `t` must not move. Each micro-batch has its own batch; number m has m live rows fewer than
 * the first. Weights have seed 7. */
Err tiny_open(Tiny *t, const TinySpec *spec);
void tiny_close(Tiny *t);
/* Local. The batch that tiny_open uses, with bounds of ids and vocab that fit. */
TestBatch tiny_batch(const TinySpec *spec, int micro);

#endif
