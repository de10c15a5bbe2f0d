/* cudnn.cu -- attention by cuDNN's fused kernels, through the cudnn-frontend headers.
 *
 * A call that fits is a batch of sequences with causal attention inside each. q [T, h, c] of B
 * sequences of L tokens is [B, h, L, c] to cuDNN, with its own strides. cuDNN's softmax statistics
 * are [B, h, L], ours are [T, h]; they are transposed in scratch, which is small.
 *
 * cuDNN is loaded at run time, and a plan is built once per shape. A shape that cuDNN refuses is
 * stored as such and runs on our own kernels, like a call that does not fit. */
#ifdef SHEAF_CUDNN
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cstring> /* missing in the headers */
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include "device/cuda/attention/cudnn.h"

extern "C" {
#include "device/cuda/attention/cudnn_fit.h"
#include "device/cuda/attention/cudnn_path.h"
}

namespace fe = cudnn_frontend;
namespace cudnn_frontend
{
void *cudnn_dlhandle = NULL; /* the headers resolve their functions in it */
}

/* Strides of a tensor [T, heads, c]; channels are contiguous. */
typedef struct {
    int64_t row, head;
} CudnnStrides;

enum { Q = 0, K, V, O, DOUT, DQ, DK, DV, N_OPERANDS };

/* Everything that a plan depends on; compared as bytes. */
typedef struct {
    int64_t batch, length, heads, key_heads, channels, backward, any_order;
    CudnnStrides stride[N_OPERANDS];
    double scale;
} CudnnShape;

typedef struct {
    CudnnShape shape;
    std::shared_ptr<fe::graph::Graph> graph; /* NULL: cuDNN refused */
    int64_t scratch_bytes;
    std::string refusal;
} CudnnPlan;

struct CudnnPlans {
    cudnnHandle_t handle;
    size_t version; /* 91400: 9.14.0 */
    char text[64];
    std::vector<CudnnPlan> plan;
    std::vector<std::string> reported; /* reasons why promised calls ran on our own kernels */
};

/* Set by cudnn_search. */
static const char *search_path;

extern "C" void cudnn_search(const char *path) { search_path = path; }

/* Opens the loader's libcudnn.so.9, or a newer one of a Python's packages. A library whose name has
 * no version was put on the loader's path on purpose and is kept. library_open does not fit: the
 * symbols must be global, because cuDNN opens its parts itself, and a failure is no error. */
static void *open_library(void)
{
    char file[1024], real[PATH_MAX];
    struct link_map *map = NULL;
    void *loaded = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
    if (loaded) {
        if (dlinfo(loaded, RTLD_DI_LINKMAP, &map) != 0 || !realpath(map->l_name, real))
            return loaded;
        if (cudnn_path_version(real) == 0) return loaded;
    }
    if (cudnn_path_newest(search_path, file, sizeof file) <=
        (loaded ? cudnn_path_version(real) : 0))
        return loaded;
    /* a library loads its parts by name alone: only one may be open */
    if (loaded) (void)dlclose(loaded);
    loaded = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    return loaded ? loaded : dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
}

extern "C" CudnnPlans *cudnn_open(int capability)
{
    (void)capability;
    if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = open_library();
    if (!fe::cudnn_dlhandle) return NULL;
    try {
        const size_t version = fe::detail::get_backend_version();
        cudnnHandle_t handle;
        if (version < CUDNN_FIT_OLDEST) return NULL;
        if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS) return NULL;
        CudnnPlans *f = new CudnnPlans();
        f->handle = handle;
        f->version = version;
        snprintf(f->text, sizeof f->text, "attention by our own kernels or cuDNN %d.%d.%d",
                 (int)version / 10000, (int)version / 100 % 100, (int)version % 100);
        return f;
    } catch (...) { /* a libcudnn without the functions that we need */
        return NULL;
    }
}

extern "C" void cudnn_close(CudnnPlans *f)
{
    if (!f) return;
    f->plan.clear();
    (void)fe::detail::destroy_handle(f->handle);
    delete f;
}

extern "C" const char *cudnn_text(const CudnnPlans *f)
{
    return f ? f->text : "attention by our own kernels: no libcudnn.so.9 of 9.3 or newer found";
}

extern "C" void cudnn_choice(const CudnnPlans *f, const Call *call, bool backward, char *out,
                             size_t bytes)
{
    if (f)
        cudnn_fit_text(cudnn_misfit(call, backward, f->version), f->version, out, bytes);
    else
        snprintf(out, bytes, "our own kernels: no libcudnn.so.9 of 9.3 or newer found");
}

/* Reports each reason once: a promise that the mask is causal expects the fused kernels. */
static void report_misfit(CudnnPlans *f, const Call *call, bool backward, const std::string &why)
{
    for (const std::string &reported : f->reported)
        if (reported == why) return;
    f->reported.push_back(why);
    const int64_t *n = call->in[0].n;
    fprintf(stderr,
            "sheaf: cuda: %s of %lld rows, %lld heads of %lld, promised causal, runs on our own "
            "kernels instead of cuDNN's: %s\n",
            kernel_name(backward ? KERNEL_attention_dx : KERNEL_attention), (long long)n[0],
            (long long)n[1], (long long)n[2], why.c_str());
}

static CudnnStrides strides_of(const Tensor *t) { return {t->stride[0], t->stride[1]}; }

static CudnnShape shape_of(const Call *call, bool backward)
{
    CudnnShape s;
    memset(&s, 0, sizeof s);
    s.length = call->attr.attention.causal;
    s.batch = call->in[0].n[0] / s.length;
    s.heads = call->in[0].n[1], s.key_heads = call->in[1].n[1], s.channels = call->in[0].n[2];
    s.backward = backward;
    s.any_order = call->queue->context->any_order;
    s.scale = call->attr.attention.scale;
    for (int i = Q; i <= V; i++) s.stride[i] = strides_of(&call->in[i]);
    s.stride[O] = strides_of(backward ? &call->in[6] : &call->out[0]);
    if (!backward) return s;
    s.stride[DOUT] = strides_of(&call->in[4]);
    for (int i = 0; i < 3; i++) s.stride[DQ + i] = strides_of(&call->out[i]);
    return s;
}

typedef std::shared_ptr<fe::graph::Tensor_attributes> CudnnTensor;

static std::vector<int64_t> dims_of(const CudnnShape &s, int which)
{
    const bool keys = which == K || which == V || which == DK || which == DV;
    return {s.batch, keys ? s.key_heads : s.heads, s.length, s.channels};
}

static std::vector<int64_t> steps_of(const CudnnShape &s, int which)
{
    return {s.length * s.stride[which].row, s.stride[which].head, s.stride[which].row, 1};
}

/* A uid is 1 + the operand; the statistics come after all operands. */
static CudnnTensor input(fe::graph::Graph &g, const CudnnShape &s, int which)
{
    return g.tensor(fe::graph::Tensor_attributes()
                        .set_uid(1 + which)
                        .set_dim(dims_of(s, which))
                        .set_stride(steps_of(s, which)));
}

static void output(CudnnTensor tensor, const CudnnShape &s, int which)
{
    tensor->set_output(true)
        .set_uid(1 + which)
        .set_dim(dims_of(s, which))
        .set_stride(steps_of(s, which));
}

static void build_forward(fe::graph::Graph &g, const CudnnShape &s)
{
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(true)
                       .set_attn_scale((float)s.scale);
    auto [o, stats] = g.sdpa(input(g, s, Q), input(g, s, K), input(g, s, V), options);
    output(o, s, O);
    stats->set_output(true).set_uid(1 + N_OPERANDS).set_data_type(fe::DataType_t::FLOAT);
}

/* Not deterministic: dq is summed by atomics. */
static void build_backward(fe::graph::Graph &g, const CudnnShape &s)
{
    auto stats = g.tensor(fe::graph::Tensor_attributes()
                              .set_uid(1 + N_OPERANDS)
                              .set_dim({s.batch, s.heads, s.length, 1})
                              .set_stride({s.heads * s.length, s.length, 1, 1})
                              .set_data_type(fe::DataType_t::FLOAT));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_dx")
                       .set_causal_mask(true)
                       .set_attn_scale((float)s.scale)
                       .set_deterministic_algorithm(!s.any_order);
    auto [dq, dk, dv] = g.sdpa_backward(input(g, s, Q), input(g, s, K), input(g, s, V),
                                        input(g, s, O), input(g, s, DOUT), stats, options);
    output(dq, s, DQ);
    output(dk, s, DK);
    output(dv, s, DV);
}

/* Builds a plan; it has no graph if cuDNN refuses. */
static CudnnPlan make_plan(cudnnHandle_t handle, const CudnnShape &s)
{
    CudnnPlan plan = {s, std::make_shared<fe::graph::Graph>(), 0, ""};
    fe::graph::Graph &g = *plan.graph;
    try {
        g.set_io_data_type(fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        if (s.backward)
            build_backward(g, s);
        else
            build_forward(g, s);
        auto built = g.build(handle, {fe::HeurMode_t::A});
        if (built.is_bad())
            plan.refusal = "cuDNN refuses: " + built.get_message();
        else if (g.get_workspace_size(plan.scratch_bytes).is_bad())
            plan.refusal = "cuDNN returns no workspace size";
    } catch (const std::exception &e) {
        plan.refusal = std::string("cuDNN refuses: ") + e.what();
    }
    if (!plan.refusal.empty()) plan.graph = NULL;
    return plan;
}

static CudnnPlan *find_plan(CudnnPlans *f, const CudnnShape &s)
{
    for (CudnnPlan &p : f->plan)
        if (memcmp(&p.shape, &s, sizeof s) == 0) return &p;
    f->plan.push_back(make_plan(f->handle, s));
    return &f->plan.back();
}

/* Copies between lse [T, heads] of any strides and cuDNN's [batch, heads, length]. */
static __global__ void transpose_stats_kernel(Tensor lse, float *stats, int64_t length, bool out)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, heads = lse.n[1];
    if (i >= lse.n[0] * heads) return;
    const int64_t t = i / heads, h = i % heads;
    float *ours = (float *)lse.data + t * lse.stride[0] + h * lse.stride[1];
    float *theirs = stats + (t / length * heads + h) * length + t % length;
    if (out)
        *ours = *theirs;
    else
        *theirs = *ours;
}

static void transpose_stats(const Call *call, const Tensor *lse, float *stats, bool out)
{
    const int64_t n = lse->n[0] * lse->n[1];
    transpose_stats_kernel<<<(unsigned)((n + 255) / 256), 256, 0, call->queue->stream>>>(
        *lse, stats, call->attr.attention.causal, out);
}

/* The scratch of a plan: the statistics, then cuDNN's workspace. */
static size_t plan_bytes(const Call *call, const CudnnPlan &plan)
{
    const Tensor &lse = plan.shape.backward ? call->in[5] : call->out[1];
    return cudnn_stats_bytes(lse.n[0], lse.n[1]) + (size_t)plan.scratch_bytes;
}

/* True unless the program has planned less scratch (scratch_cudnn). */
static bool plan_fits(const Call *call, const CudnnPlan &plan)
{
    const DeviceQueue *q = call->queue;
    return plan.graph && (!q || !q->lent || plan_bytes(call, plan) <= q->scratch_bytes);
}

static Err execute(const Call *call, CudnnPlan *plan)
{
    CudnnPlans *f = call->queue->context->cudnn;
    const bool backward = plan->shape.backward;
    const Tensor *lse = backward ? &call->in[5] : &call->out[1];
    const size_t stats_bytes = cudnn_stats_bytes(lse->n[0], lse->n[1]);
    char *scratch;
    TRY(cuda_scratch(call->queue, plan_bytes(call, *plan), (void **)&scratch));
    if (backward) transpose_stats(call, lse, (float *)scratch, false);
    std::unordered_map<int64_t, void *> at;
    for (int i = Q; i <= V; i++) at[1 + i] = call->in[i].data;
    at[1 + O] = backward ? call->in[6].data : call->out[0].data;
    at[1 + N_OPERANDS] = scratch;
    if (backward) {
        at[1 + DOUT] = call->in[4].data;
        for (int i = 0; i < 3; i++) at[1 + DQ + i] = call->out[i].data;
    }
    (void)fe::detail::set_stream(f->handle, call->queue->stream);
    auto status = plan->graph->execute(f->handle, at, scratch + stats_bytes);
    if (status.is_bad())
        return err_fail(ERR_IO, "cuda: cuDNN's attention: %s", status.get_message().c_str());
    if (!backward) transpose_stats(call, lse, (float *)scratch, true);
    return cuda_launched(backward ? KERNEL_attention_dx : KERNEL_attention);
}

extern "C" bool cudnn_takes(CudnnPlans *f, const Call *call, bool backward)
{
    return f && !cudnn_misfit(call, backward, f->version) &&
           plan_fits(call, *find_plan(f, shape_of(call, backward)));
}

static Err run(const Call *call, bool backward)
{
    try {
        return execute(call, find_plan(call->queue->context->cudnn, shape_of(call, backward)));
    } catch (const std::exception &e) {
        return err_fail(ERR_IO, "cuda: cuDNN's attention: %s", e.what());
    }
}

extern "C" Err cudnn_attention(const Call *call) { return run(call, false); }
extern "C" Err cudnn_attention_dx(const Call *call) { return run(call, true); }

extern "C" void cudnn_report(CudnnPlans *f, const Call *call, bool backward)
{
    if (!f || call->attr.attention.causal <= 0) return;
    const char *misses = cudnn_misfit(call, backward, f->version);
    std::string why = misses ? misses : "";
    if (!misses) {
        const CudnnPlan &plan = *find_plan(f, shape_of(call, backward));
        why = plan.refusal;
        if (why.empty() && !plan_fits(call, plan))
            why = "cuDNN takes " + std::to_string(plan_bytes(call, plan)) +
                  " bytes of scratch, more than the run planned";
    }
    if (!why.empty()) report_misfit(f, call, backward, why);
}
#endif
