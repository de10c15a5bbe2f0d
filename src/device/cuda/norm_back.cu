/* norm_back.cu -- gradients of layernorm and rmsnorm, in one pass over dy and x.
 *
 *   h = (x - mean) rstd,  g = dy w,  dx = addend + rstd (g - avg(g) - h avg(g h))
 *   dw = sum over rows of dy h,  db = sum over rows of dy         rmsnorm: without avg(g), db
 *   dbias = sum over rows of addend
 *
 * Rows that are short enough and aligned are prefetched (norm_back_rows.cuh); others are not
 * (norm_back_any.cuh). Each block writes its column sums to scratch, where they are added
 * (column_fold.cuh) in an order that the shape alone determines. Both kernels compute dx, dw or
 * both by one body, so that each has the same bits whichever else is computed. LAYER: a layernorm,
 * which has a mean and a db.
 *
 * BIAS: also dbias, if a warp has a row of its own. column_sums.cu assigns such rows to warps in
 * the same way, so the bits are equal. In all other cases column_sums.cu computes dbias. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/norm_back_any.cuh"
#include "device/cuda/norm_back_rows.cuh"

/* The question whether prefetched rows fit into the shared memory of a block. */
typedef struct {
    RowSet rows;
    bool *fits;
} NormBackFit;

template <bool LAYER, bool BIAS> struct NormBackLaunches {
    template <int G, int K, DType T> struct NormBackFits {
        static Err run(const NormBackFit &f, const DeviceQueue *q)
        {
            typedef BackFetch<BIAS && G == 32, G, K, T> Fetch;
            *f.fits = (int)Fetch::BYTES + 1024 <= q->context->shared_bytes; /* and its statics */
            return OK;
        }
    };
    template <int G, int K, DType T> struct NormBackLaunch {
        static Err run(const NormBackPrefetchArgs &m, const DeviceQueue *q)
        {
            enum { SUM_BIAS = BIAS && G == 32 }; /* other groups never sum it */
            typedef BackFetch<SUM_BIAS, G, K, T> Fetch;
            static_assert(Fetch::BYTES >= 4 * WALK_WIDE * K * Fetch::THREADS, "sums fit");
            CUDA_TRY(cudaFuncSetAttribute(back_kernel<LAYER, SUM_BIAS, G, K, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          Fetch::BYTES));
            const LaunchShape shape = {dim3((unsigned)m.blocks), dim3(Fetch::THREADS),
                                       Fetch::BYTES};
            return pdl_launch(back_kernel<LAYER, SUM_BIAS, G, K, T>, shape, q, m);
        }
    };
};

static bool is_wide(const NormBackArgs &m)
{
    return span_fits(m.dy) && span_fits(m.x) && span_fits(m.addend) && span_fits(m.w) &&
           span_fits(m.dx) && span_reaches(m.mean) && span_reaches(m.rstd);
}

/* True if rows are prefetched. A layernorm's are if those with dbias fit, so that what else is
 * computed does not choose the kernel. */
static bool prefetches(const NormBackArgs &m, const DeviceQueue *q)
{
    bool fits = false;
    if (!is_wide(m) || !fetch_fits(m.x.dtype, m.width)) return false;
    const NormBackFit f = {row_set_of(m.x, m.rows), &fits};
    if (m.mean.data)
        (void)fetch_run<NormBackLaunches<true, true>::NormBackFits>(f, m.x.dtype, q);
    else
        (void)fetch_run<NormBackLaunches<false, false>::NormBackFits>(f, m.x.dtype, q);
    return fits;
}

/* True if dbias can be computed in the same pass, with the bits of column_sums.cu. */
static bool can_sum_addend(const NormBackArgs &m, const DeviceQueue *q)
{
    return prefetches(m, q) && fetch_row_warps(m.x.dtype, m.width) > 0;
}

static Err prefetch_launch(const NormBackArgs &m, const DeviceQueue *q)
{
    const int dims = m.x.ndim - 1;
    const NormBackPrefetchArgs b = {span_of(m.dy, dims),
                                    span_of(m.x, dims),
                                    span_of(m.addend, dims),
                                    span_of(m.dx, dims),
                                    span_of(m.mean, dims),
                                    span_of(m.rstd, dims),
                                    (const char *)m.w.data,
                                    row_set_of(m.x, m.rows),
                                    m.per_width,
                                    m.part,
                                    m.sums,
                                    m.blocks};
    if (m.dbias.data)
        return fetch_run<NormBackLaunches<true, true>::NormBackLaunch>(b, m.x.dtype, q);
    return m.mean.data ? fetch_run<NormBackLaunches<true, false>::NormBackLaunch>(b, m.x.dtype, q)
                       : fetch_run<NormBackLaunches<false, false>::NormBackLaunch>(b, m.x.dtype, q);
}

static Err launch(const Call *call, KernelId id, NormBackArgs m)
{
    const cudaStream_t stream = call->queue->stream;
    void *scratch;
    const bool wide = is_wide(m);
    m.blocks = (int)(m.rows < FETCH_BLOCKS ? m.rows : FETCH_BLOCKS);
    m.sums = m.dbias.data ? 3 : m.db.data ? 2 : 1;
    if (m.dw.data) {
        TRY(cuda_scratch(call->queue, scratch_columns(m.sums, m.blocks, m.width), &scratch));
        m.part = (float *)scratch;
    }
    if (m.blocks > 0 && prefetches(m, call->queue))
        TRY(prefetch_launch(m, call->queue));
    else if (m.blocks > 0 && wide)
        any_kernel<WALK_WIDE><<<(unsigned)m.blocks, ANY_THREADS, 0, stream>>>(m);
    else if (m.blocks > 0)
        any_kernel<1><<<(unsigned)m.blocks, ANY_THREADS, 0, stream>>>(m);
    if (m.dw.data)
        TRY(column_fold({m.part,
                         m.blocks,
                         m.sums,
                         m.width,
                         {m.dw, m.db, m.dbias},
                         {m.keep_dw, m.keep_db, m.keep_dbias}},
                        call->queue));
    return cuda_launched(id);
}

/* dbias by a separate kernel. */
static Err sum_addend(const Call *call)
{
    const Call sum = call_sum_rows(call, &call->in[5], 3);
    return cuda_sum_rows(&sum);
}

/* One pass if the kernel of dw alone is the same; otherwise dw, then dx, which may overwrite dy.
 * dbias comes first, because dx may overwrite the addend. */
static Err norm_back(const Call *call, KernelId id, NormBackArgs m)
{
    TRY(cuda_begin(call, id));
    TRY(rows_of(m.x, &m.rows));
    m.width = m.x.n[m.x.ndim - 1];
    if (m.width == 0) return OK;
    m.per_width = 1 / (float)m.width;
    MUST(m.dy.dtype == m.x.dtype, "dy and x have different types");
    if (m.dbias.data && !can_sum_addend(m, call->queue)) {
        TRY(sum_addend(call));
        m.dbias.data = NULL;
    }
    if (!m.dx.data || !m.dw.data || is_wide(m)) return launch(call, id, m);
    NormBackArgs dw = m, dx = m;
    dw.dx.data = dw.addend.data = dw.w.data = NULL; /* as in a call of dw alone */
    dx.dw.data = dx.db.data = NULL;
    TRY(launch(call, id, dw));
    return launch(call, id, dx);
}

static NormBackArgs of_dx(const Call *call, bool layer)
{
    NormBackArgs m = {};
    const int rstd = layer ? 4 : 3;
    m.dy = call->in[0], m.x = call->in[1], m.w = call->in[2], m.rstd = call->in[rstd];
    if (layer) m.mean = call->in[3];
    if (call->n_in > rstd + 1) m.addend = call->in[rstd + 1];
    m.dx = call->out[0];
    return m;
}

static NormBackArgs of_dw(const Call *call, bool layer)
{
    NormBackArgs m = {};
    m.dy = call->in[0], m.x = call->in[1], m.rstd = call->in[layer ? 3 : 2];
    if (layer) m.mean = call->in[2], m.db = call->out[1];
    m.dw = call->out[0];
    m.keep_dw = (float)call->number[0], m.keep_db = (float)call->number[1];
    return m;
}

static NormBackArgs of_both(const Call *call, bool layer)
{
    NormBackArgs m = of_dx(call, layer);
    m.dw = call->out[1];
    if (layer) m.db = call->out[2];
    m.keep_dw = (float)call->number[1], m.keep_db = (float)call->number[2];
    if (call->n_out > 3) m.dbias = call->out[3], m.keep_dbias = (float)call->number[3];
    return m;
}

extern "C" Err cuda_layernorm_dx(const Call *call)
{
    return norm_back(call, KERNEL_layernorm_dx, of_dx(call, true));
}

extern "C" Err cuda_layernorm_dw(const Call *call)
{
    return norm_back(call, KERNEL_layernorm_dw, of_dw(call, true));
}

extern "C" Err cuda_layernorm_back(const Call *call)
{
    return norm_back(call, KERNEL_layernorm_back, of_both(call, true));
}

extern "C" Err cuda_rmsnorm_dx(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_dx, of_dx(call, false));
}

extern "C" Err cuda_rmsnorm_dw(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_dw, of_dw(call, false));
}

extern "C" Err cuda_rmsnorm_back(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_back, of_both(call, false));
}
