/* published.h -- a row of a table of published measurements as a plan of Sheaf.
 *
 * Columns: layers, hidden, ffn, heads, kv_heads, vocab, seq_len, global_batch, micro_batch, gpus,
 * gpu_type, gpus_per_node, tp, pp, dp, cp, vp, zero, sequence_parallel, recompute, precision,
 * experts, topk, ep, step_ms, tokens_per_s_per_gpu, tflops_per_gpu (MoE folding alone), mem_gib,
 * oom; notes has key=value pairs: gated, tied, head_dim, expert_ffn, etp, method, lora, attn,
 * after_pp_fix, oom_in_log, release, nvlink_domain (GPUs), and ag_in: GB/s of an all-gather inside
 * a node.
 * Cells that a source leaves empty are read as the plainest choice: no ZeRO, no recomputation, one
 * chunk per stage, a vocabulary of 50,257. Routing is balanced. */
#ifndef BENCH_SUPPORT_PUBLISHED_H
#define BENCH_SUPPORT_PUBLISHED_H

#include "job/job.h"
#include "support/csv.h"

typedef struct {
    const char *skip; /* why the row has no prediction; NULL: it has */
    double step_s;    /* measured */
    char cluster[32]; /* "h100-sxm" */
    const char *gpu;  /* its type: "H100" */
    char release[16]; /* of the software, if the source has several: "26.04"; "": it has one */
    int node;         /* ranks of a node */
    double node_gbps; /* of an all-gather in a node, measured by the run itself; 0: not given */
    int micros;       /* of a rank */
    int send_parts;   /* as in ClockInput */
    double dp_calls, dp_bytes; /* the same */
    int attention_launches;
    ModelConfig model;
    JobSettings job;
} PublishedRow;

/* Local. `out` must not move: job points to its model. */
void published_row(const CsvTable *t, int row, PublishedRow *out);

#endif
