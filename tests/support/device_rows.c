/* device_rows.c -- one rank, then every kind of transfer, alone and with others. */
#include "support/device_rows.h"

#include "support/clips.h"

enum { FRAMES = 5, PLACES = 6 };

const DeviceRow device_rows[] = {
    {"one", "gpt2", "1f1b", .micros = 3, .validate = true},
    {"one bf16", "llama", "1f1b", .micros = 2, .dtype = BF16},
    {"one sgd", "llama-tied", "gpipe", .micros = 2, .sgd = true},
    {"offload", "llama", "gpipe", .micros = 3, .offload = "attn.*,mlp.*"},
    {"dp zero0", "gpt2", "1f1b", .dp = 2, .micros = 2},
    {"dp zero1", "llama", "1f1b", .dp = 2, .micros = 2, .zero = 1, .validate = true},
    {"dp zero2", "gpt2", "1f1b", .dp = 2, .micros = 3, .zero = 2, .each = true},
    {"dp zero3", "llama-tied", "1f1b", .dp = 3, .micros = 2, .zero = 3, .each = true},
    {"dp zero3 bf16", "llama", "1f1b", .dp = 2, .micros = 2, .zero = 3, .each = true,
     .dtype = BF16},
    {"tp", "gpt2", "1f1b", .tp = 2, .micros = 2},
    {"tp 4", "llama", "1f1b", .tp = 4, .micros = 2, .in_order = true},
    {"tp 3", "qwen2", "1f1b", .tp = 3, .micros = 2},
    {"sp", "llama", "1f1b", .tp = 2, .micros = 2, .sequence = true},
    {"sp bf16", "llama", "1f1b", .tp = 2, .micros = 2, .sequence = true, .dtype = BF16},
    {"pp 1f1b", "gpt2", "1f1b", .pp = 2, .micros = 3, .layers = 4},
    {"pp zbv", "llama", "zbv", .pp = 2, .micros = 4, .layers = 4},
    {"pp evict", "llama", "1f1b", .pp = 4, .micros = 7, .layers = 4, .evict = true},
    {"mix", "llama", "1f1b", .dp = 2, .tp = 2, .pp = 2, .micros = 2, .layers = 4, .zero = 1},
    {"mix zero3", "gpt2", "1f1b", .dp = 2, .tp = 2, .pp = 2, .micros = 2, .layers = 4, .zero = 3,
     .each = true, .sequence = true},
    {"cp gather", "llama", "1f1b", .cp = 3, .tokens = TOKENS_ZIGZAG, .context = CONTEXT_GATHER,
     .micros = 2, .zero = 1, .validate = true},
    {"cp ulysses sp", "llama", "1f1b", .cp = 2, .tp = 2, .tokens = TOKENS_STRIPED,
     .context = CONTEXT_ULYSSES, .micros = 2, .sequence = true, .validate = true},
    {"cp both bf16", "llama", "1f1b", .cp = 4, .cp_heads = 2, .tokens = TOKENS_STRIPED, .dp = 2,
     .micros = 2, .zero = 3, .each = true, .dtype = BF16},
    {"cp ring", "llama", "1f1b", .cp = 3, .tokens = TOKENS_ZIGZAG, .context = CONTEXT_RING,
     .micros = 2, .zero = 1, .validate = true},
    {"cp ring pp bf16", "llama", "zbv", .cp = 2, .pp = 2, .tokens = TOKENS_STRIPED,
     .context = CONTEXT_RING, .micros = 3, .layers = 4, .dtype = BF16},
    {"cp double-ring", "llama", "1f1b", .cp = 4, .cp_inner = 2, .tokens = TOKENS_ZIGZAG,
     .context = CONTEXT_DOUBLE_RING, .micros = 2},
    {"cp lightseq", "llama", "1f1b", .cp = 4, .tokens = TOKENS_CONTIGUOUS,
     .context = CONTEXT_LIGHTSEQ, .micros = 2, .zero = 3, .each = true},
    {"cp token-ring bf16", "qwen3", "1f1b", .cp = 3, .tokens = TOKENS_ZIGZAG,
     .context = CONTEXT_TOKEN_RING, .micros = 2, .dtype = BF16},
    {"cp rsa", "gpt2", "1f1b", .cp = 3, .tokens = TOKENS_CONTIGUOUS, .context = CONTEXT_RSA,
     .micros = 2, .validate = true},
    {"streamed weights", "llama", "1f1b", .cp = 3, .tokens = TOKENS_ZIGZAG,
     .context = CONTEXT_GATHER, .micros = 2, .stream = true},
    {"streamed bf16", "llama", "1f1b", .cp = 2, .dp = 2, .tokens = TOKENS_ZIGZAG,
     .context = CONTEXT_RING, .micros = 2, .zero = 3, .each = true, .stream = true, .dtype = BF16},
    {"clips dsp", "llama", "1f1b", .clips = 2, .cp = 2, .context = CONTEXT_DSP, .micros = 2,
     .layers = 4},
    {"clips dsp bf16", "llama", "1f1b", .clips = 3, .cp = 2, .dp = 2, .context = CONTEXT_DSP,
     .micros = 2, .layers = 3, .zero = 3, .each = true, .dtype = BF16},
    {"clips ulysses", "llama", "1f1b", .clips = 2, .cp = 4, .context = CONTEXT_ULYSSES, .micros = 2,
     .layers = 2},
    {"clips ring", "llama", "1f1b", .clips = 2, .cp = 3, .context = CONTEXT_RING, .micros = 2,
     .layers = 2},
    {"clips streamed", "llama", "1f1b", .clips = 2, .cp = 2, .tp = 2, .context = CONTEXT_DSP,
     .micros = 2, .layers = 2, .stream = true},
    {"ep", "mixtral", "1f1b", .dp = 2, .ep = 2, .micros = 2, .zero = 1, .validate = true},
    {"ep etp over tp", "qwen2_moe", "1f1b", .dp = 2, .tp = 2, .ep = 2, .etp = 2, .micros = 2,
     .zero = 3, .sequence = true},
    {"ep over cp pp", "mixtral", "zbh1", .cp = 2, .pp = 2, .ep = 2, .micros = 2, .layers = 4,
     .context = CONTEXT_GATHER, .tokens = TOKENS_ZIGZAG},
    {"ep rounds", "qwen2_moe", "1f1b", .dp = 2, .tp = 2, .ep = 2, .etp = 2, .micros = 2, .zero = 2,
     .rounds = true, .validate = true},
    {"ep rounds pp", "mixtral", "zbh1", .dp = 2, .pp = 2, .ep = 2, .micros = 3, .layers = 4,
     .rounds = true},
};
const int n_device_rows = sizeof device_rows / sizeof *device_rows;

World device_world(const DeviceRow *row, const Device *device, ModelConfig *config)
{
    World w = world_of(test_job_settings(row->model, JOB_STEP));
    w.device = device;
    w.steps = 3;
    w.set.dtype = row->dtype ? row->dtype : F32;
    w.init = w.set.dtype == BF16;
    w.set.micros = row->micros;
    w.set.optim.clip = 0.4;
    if (row->sgd) w.set.optim.kind = OPTIM_SGD;
    if (row->tp > 2) w.set.optim.block = 4096; /* a rank counts several runs of it */
    w.set.schedule = row->schedule;
    w.set.split = row->split;
    w.set.compile.offload_names = row->offload;
    *config = row->clips ? clips_config(row->layers, row->clips, FRAMES, PLACES) : *w.set.config;
    if (row->clips) w.set.batch = (BatchShape){2, FRAMES * PLACES};
    if (row->layers) config->n_layers = row->layers;
    if (row->context == CONTEXT_RSA) config->full_mask = true; /* its plan has all pairs */
    if (row->ep) config->experts.n = 4;
    w.set.config = config;
    ParallelSettings *p = &w.set.parallel;
    p->mesh = (MeshSizes){.dp_replicate = 1,
                          .dp_shard = row->dp,
                          .tp = row->tp,
                          .pp = row->pp,
                          .cp = row->cp,
                          .cp_heads = row->cp_heads,
                          .stream_weights = row->stream,
                          .ep = row->ep,
                          .etp = row->etp};
    p->tokens = row->tokens;
    p->context = row->context;
    p->cp_inner = row->cp_inner;
    if (row->cp) w.set.batch.sequences = 2;
    p->zero = row->zero;
    p->reduce_each = row->each;
    p->sequence = row->sequence;
    p->evict = row->evict;
    p->rounds = row->rounds;
    p->expert_rows = row->rounds ? 0.5 : 0;
    p->in_order = row->in_order;
    w.validate = row->validate;
    return w;
}
