/* cluster.h -- cluster files: the rates of a machine as YAML.
 *
 *     name: h100-sxm
 *     overlap: true                                      transfers progress while ranks compute
 *     slowdown: {work: 1.05, transfer: 1.1}          [+]  factors while both are under way
 *     share_links: true                              [+]  flows of a rank at a level share its link
 *     device:
 *       memory_gib: 80                                   2^30 bytes
 *       host_memory: true                            [+]  Cluster
 *       peak_tflops: {f32: 67, bf16: 989}                by the vendor: for mfu
 *       gemm_tflops: {f64: 40, f32: 40, bf16: 600}       sustained
 *       attention_tflops: {f64: 30, f32: 30, bf16: 450}
 *       pointwise_tflops: {f64: 15, f32: 30, bf16: 30}
 *       memory_gbps: 2700                                1e9 bytes per second
 *       host_gbps: 50
 *       launch_us: 4                                     of a kernel, on the device
 *       host_launch_us: 5                            [+]  on the host, which launches ahead
 *       host_member_us: 2                            [+]  more for each member of a collective
 *       pair_bytes: 0, logit_bytes: 0                [+]  CostRates
 *       tiles: {units: 132, m: 256, n: 128, fill_k: 64, boost: 1.2}   [+]  CostTiles
 *       price_per_hour: 2.5                          [+]  US dollars
 *       power_w: {idle: 75, busy: 700}               [+]
 *       gemm_table:                                  [+]  CostGrid: k varies fastest in tflops
 *         bf16: {m: [1024, 8192], n: [4096], k: [512, 4096], tflops: [310, 520, 480, 640]}
 *       attention_table: {bf16: {flops: [1e9, 1e12], tflops: [90, 450]}}   [+]
 *       attention_by_keys:                           [+]  CostAttention: a map for each head width
 *         bf16: [{width: 64, keys: [512, 8192], tflops: [380, 470], back_tflops: [270, 330]}]
 *       memory_reach: {norm: 0.85, loss: 0.8, state: 0.94}                 [+]  MemoryReach
 *       epilogue: 0.6                                [+]  CostRates
 *       memory_table: {bytes: [1e5, 1e8], gbps: [300, 2700]}               [+]
 *     links:                                             from narrow to wide
 *       - {level: node, ranks: 8, latency_us: 8, gbps: 360}    groups of 8 consecutive ranks
 *       - {level: world, latency_us: 20, gbps: 45, shared_by: 1,
 *          pair_latency_us: 20, pair_gbps: 30}               all ranks
 *     pairs: {ranks: 3, latency_us: [4, 9, 9], gbps: [280, 24, 25]}    [+]  0-1, 0-2, 1-2
 *     node_links:                                    [+]  slower than the level, which has the rest
 *       - {nodes: [1, 6], latency_us: 40, gbps: 5}            two blocks of the first level
 *       - {islands: [[0, 1], [2, 3]], latency_us: 90, gbps: 3}    between islands
 *     node_devices:                                  [+]  slower than `device`, the fastest
 *       - {nodes: [4, 5], speed: 0.5, memory_gib: 40}
 *     collectives:                                   [+]  measured, instead of the formulas
 *       - {kind: all-reduce, members: 8, level: node, inside: 1, bytes: [1e5, 1e8], us: [30, 450]}
 *
 * Keys with [+], and level, shared_by and pair_* of links, may be absent. Every other key must be
 * present, each key at most once, and no other may. */
#ifndef PLAN_CLUSTER_CLUSTER_H
#define PLAN_CLUSTER_CLUSTER_H

#include "base/text.h"
#include "cost/cluster.h"

/* Local. The text of a file that cluster_read reads as the same cluster, up to six digits. */
void cluster_text(const Cluster *c, Text *out);
/* Local. ERR_CONFIG names the file, the line, the key, the value and its limits. */
Err cluster_read(const char *path, Arena *arena, Cluster *out);

#endif
