/* cluster.h -- cluster files: the rates of a machine as YAML.
 *
 *     name: h100-sxm
 *     overlap: true
 *     device:
 *       memory_gib: 80                                   2^30 bytes
 *       peak_tflops: {f32: 67, bf16: 989}                by the vendor: for mfu
 *       gemm_tflops: {f64: 40, f32: 40, bf16: 600}       sustained
 *       attention_tflops: {f64: 30, f32: 30, bf16: 450}
 *       pointwise_tflops: {f64: 15, f32: 30, bf16: 30}
 *       memory_gbps: 2700                                1e9 bytes per second
 *       host_gbps: 50
 *       launch_us: 4
 *     links:                                             from narrow to wide
 *       - {ranks: 8, latency_us: 8, gbps: 360}           groups of 8 consecutive ranks
 *       - {latency_us: 20, gbps: 45}                     all ranks
 *
 * Every key must be present once, and no other may. */
#ifndef PLAN_CLUSTER_H
#define PLAN_CLUSTER_H

#include "base/text.h"
#include "cost/cluster.h"

/* Local. The text of a file that cluster_read reads as the same cluster, up to six digits. */
void cluster_text(const Cluster *c, Text *out);
/* Local. ERR_CONFIG names the file, the line, the key, the value and its limits. */
Err cluster_read(const char *path, Arena *arena, Cluster *out);

#endif
