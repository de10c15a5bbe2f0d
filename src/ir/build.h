/* build.h -- the functions in which a model is written.
 *
 *     const Value a = rmsnorm(g, x, weight, eps);
 *     const Value q = heads(g, linear(g, a, wq, NO_VALUE), head_size);
 *
 * A builder that fails (shapes that do not fit) marks the graph; all later ones then do nothing,
 * and graph_err returns the error. Shapes are global: no builder depends on ranks. */
#ifndef IR_BUILD_H
#define IR_BUILD_H

#include "ir/graph.h"

/* An input of the micro-batch. Declares it on first use. */
Value input(Graph *g, Input which, Dim rows);
/* The same for an input whose rows have `extent` elements in this model. */
Value input_sized(Graph *g, Input which, Dim rows, int64_t extent);
/* The stream from the unit before; the value that goes to the unit after. */
Value stream_in(Graph *g, Dim rows, int64_t width);
Value stream_out(Graph *g, Value y);
/* v, or a copy of it if v is given from outside or is a view: a unit's outputs must be its own. */
Value own(Graph *g, Value v);

/* y[t,o] = x[t,i] w[o,i]^T (+ bias[o], unless NO_VALUE) */
Value linear(Graph *g, Value x, Value w, Value bias);
Value add(Graph *g, Value a, Value b);
Value scale(Graph *g, Value x, double factor);
Value cast(Graph *g, Value x, DType to);
Value gelu(Graph *g, Value x);
Value swiglu(Graph *g, Value gate, Value up);
Value layernorm(Graph *g, Value x, Value w, Value b, double eps);
/* Over the last dim: of rows [t,d], or of each head [t,h,c]. */
Value rmsnorm(Graph *g, Value x, Value w, double eps);
Value embedding(Graph *g, Value ids, Value w);
Value rope(Graph *g, Value x, Value positions, const Attr *rotation);
/* q[t,h,c], k v[t,g,c] -> [t,h,c]; span: most keys that a query sees, to count flops. */
Value attention(Graph *g, Value q, Value k, Value v, Value ranges, double factor, int64_t span);
/* q[t,h,c], k v[t,g,c] -> [t,h,c], tokens t = (outer length inner): each attends, without a mask,
 * to the `length` tokens that differ from it in that dim alone. */
Value attention_along(Graph *g, Value q, Value k, Value v, int64_t length, int64_t inner,
                      double factor);
/* The second output of the node that makes `first`: the lse of attention, the rstd of an
 * rmsnorm. */
Value second_output(const Graph *g, Value first);
/* [t,h*c] as [t,h,c], and back. */
Value heads(Graph *g, Value x, int64_t size);
Value merge(Graph *g, Value x);
/* [(ab),d] as [a,b,d] with b = size, and back. */
Value unfold_rows(Graph *g, Value x, int64_t size);
Value fold_rows(Graph *g, Value x);
/* y[b,a,d] = x[a,b,d] */
Value transpose_rows(Graph *g, Value x);
/* The sum of weights[t] * cross entropy of row t of x w^T. All logits never exist at once: the
 * GEMMs of the head and the loss run a chunk of rows at a time, gradients included. */
Value token_loss(Graph *g, Value x, Value w, Value targets, Value weights);

/* ---- mixture of experts: t tokens, k choices of each, rows r = t k sorted by expert ---- */

/* Logits [t,e] in the wide type. */
Value linear_wide(Graph *g, Value x, Value w);
/* The choices of a router. */
typedef struct {
    Value gate, expert, load; /* [t,k], [t,k], [e] */
} Routing;
/* bias: NO_VALUE, or [e], added to the scores for the selection alone. */
Routing route(Graph *g, Value logits, Value bias, int64_t k, const Attr *attr);
/* The rows that experts compute. */
typedef struct {
    Value at, offsets; /* [t,k]: row of each choice, [e + 1]: first row of each expert */
} RowAssignment;
/* The expert of each choice, or -1 beyond the capacity of attr.limit. */
Value limit_choices(Graph *g, const Routing *r, const Attr *attr);
RowAssignment assign_rows(Graph *g, Value expert, int64_t experts);
/* gate: NO_VALUE: 1. */
Value permute(Graph *g, Value x, Value at, Value gate);
Value unpermute(Graph *g, Value at, Value y, Value gate);
/* y[r,o] = x[r,i] w[e,o,i]^T, where offsets has the rows of each e. */
Value grouped_linear(Graph *g, Value x, Value w, Value offsets);
Value grouped_swiglu(Graph *g, Value gate, Value up, Value offsets);
/* sigmoid(s[t,1]) x[t,d] */
Value sigmoid_gate(Graph *g, Value x, Value s);

/* ---- diffusion transformers: t tokens, b clips, clip[t] < b ---- */

/* layernorm(x) (1 + scale[clip]) + shift[clip], without weights: adaLN. scale, shift: [b,d] */
Value modulate(Graph *g, Value x, Value scale, Value shift, Value clip, double eps);
/* residual + gate[clip] x */
Value gate_add(Graph *g, Value x, Value gate, Value clip, Value residual);
/* Features [b, width] of times [b]: cosines and sines of rate * time. */
Value sinusoid(Graph *g, Value time, int64_t width, double rate);
/* The sum of weights[t] times the mean of (x - target)^2 of row t. */
Value square_loss(Graph *g, Value x, Value target, Value weights);

/* The part of x that begins at `from` in dim `dim` and has the given extent there. */
Value part(Graph *g, Value x, int dim, int64_t from, Dim extent);
/* The concatenation of the values along dim `dim`. They are made in place; nothing is copied. */
Value join(Graph *g, int n, const Value *parts, int dim, Dims dims);
/* A copy in host memory, and one back on the device: begun here, done after the wait. */
Value copy_out(Graph *g, Value x);
Value copy_in(Graph *g, Value x);
Value wait_for(Graph *g, Value begun);
/* Runs the sub-program that the step binds to `slot`: its arguments are the inputs, then the
 * output. The node has a second output, the region in which the sub-program stores its own tensors.
 * No pass calls it, only tests do: attention plans are nodes of the unit. */
Value call(Graph *g, int n_in, const Value *in, Dims out, int slot, int64_t region_bytes);

#endif
