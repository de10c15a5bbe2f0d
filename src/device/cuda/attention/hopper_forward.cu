/* hopper_forward.cu -- attention on the tensor cores of sm_90a: wgmma, TMA, specialized warps. */
#include "device/cuda/attention/hopper_forward.h"
#include "device/cuda/attention/hopper_forward_group.cuh"
#include "device/cuda/attention/hopper_forward_load.cuh"
#include "device/cuda/tensor_map.h"

template <class F>
static __global__ void __launch_bounds__(F::THREADS, 1)
    attention_kernel(const __grid_constant__ ForwardArgs args)
{
    extern __shared__ char raw[];
    const ForwardShared<F> r(raw);
    const int group = uniform(threadIdx.x / WARPGROUP), warp = uniform(threadIdx.x / 32 % 4);
    if (threadIdx.x == 0) r.open();
    __syncthreads();
    if (group == F::GROUPS) {
        setmaxnreg_dec<F::LOADER_REGS>();
        if (warp == 0 && threadIdx.x % 32 == 0) KeyLoader<F>{r, args}.run();
        if (warp == 1) check_values(r, args);
        if (warp == 2) plan_tiles(r, args);
    } else {
        setmaxnreg_inc<F::CONSUMER_REGS>();
        Consumer<F>{r, args, group}.run();
    }
}

template <class F> static Err launch(const Call *call, bool boxes)
{
    ForwardArgs args = {};
    const DeviceContext *c = call->queue->context;
    const int q_box[] = {F::BM, 1, BOX_CHANNELS}, k_box[] = {F::BN, 1, BOX_CHANNELS};
    const int o_box[] = {64, 1, BOX_CHANNELS};
    args.boxes = boxes;
    TRY(tensor_map_of(c, &call->in[0], q_box, &args.q));
    TRY(tensor_map_of(c, &call->in[1], k_box, &args.k));
    TRY(tensor_map_of(c, &call->in[2], k_box, &args.v));
    if (boxes) TRY(tensor_map_of(c, &call->out[0], o_box, &args.o));
    CUDA_TRY(cudaFuncSetAttribute(attention_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  F::BYTES));
    /* Last of what may fail: the counts of tiles that it fills are cleared by the kernel alone. */
    TRY(attention_open(call, KERNEL_attention, false, false, F::BM, &args.a));
    const int64_t tiles = (int64_t)args.a.order.tiles * args.a.h;
    const unsigned blocks = (unsigned)(tiles < c->sms ? tiles : c->sms);
    attention_kernel<F><<<blocks, F::THREADS, F::BYTES, call->queue->stream>>>(args);
    return cuda_launched(KERNEL_attention);
}

static bool bf16_boxes(const Tensor *t) { return t->dtype == BF16 && tensor_map_fits(t); }

extern "C" bool hopper_forward_fits(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    return call->queue->context->encode_tensor_map && bf16_boxes(q) && bf16_boxes(k) &&
           bf16_boxes(&call->in[2]) && q->n[2] <= 128 && q->n[2] % 8 == 0 &&
           call->attr.attention.scale > 0 && q->n[0] * q->n[1] < INT_MAX / 2;
}

extern "C" Err hopper_forward(const Call *call)
{
    const bool boxes = bf16_boxes(&call->out[0]) && call->number[0] == 0;
    if (call->in[0].n[2] <= 64) return launch<ForwardShape<64, 3, 128, 4>>(call, boxes);
    return launch<ForwardShape<128, 2, 128, 2>>(call, boxes);
}
