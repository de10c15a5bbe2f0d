/* cluster_write.c -- a cluster as the text of a cluster file. */
#include "plan/cluster.h"

/* Types of an unknown peak, which is 0, are left out. */
static void flops_line(Text *t, const char *key, const double *flops_per_s)
{
    static const struct {
        const char *name;
        DType type;
    } types[] = {{"f64", F64}, {"f32", F32}, {"bf16", BF16}};
    const char *before = "";
    text_add(t, "  %s: {", key);
    for (int i = 0; i < 3; i++) {
        if (flops_per_s[types[i].type] == 0) continue;
        text_add(t, "%s%s: %.6g", before, types[i].name, 1e-12 * flops_per_s[types[i].type]);
        before = ", ";
    }
    text_add(t, "}\n");
}

void cluster_text(const Cluster *c, Text *t)
{
    const CostRates *r = &c->rates;
    text_add(t, "name: \"");
    for (const char *s = c->name; *s; s++)
        text_add(t, "%s%c", *s == '"' || *s == '\\' ? "\\" : "", *s);
    text_add(t, "\"\noverlap: %s\ndevice:\n", c->overlaps ? "true" : "false");
    text_add(t, "  memory_gib: %.6g\n", c->memory_bytes / 0x1p30);
    flops_line(t, "peak_tflops", c->peak_flops_per_s);
    flops_line(t, "gemm_tflops", r->flops_per_s[WORK_GEMM]);
    flops_line(t, "attention_tflops", r->flops_per_s[WORK_ATTENTION]);
    flops_line(t, "pointwise_tflops", r->flops_per_s[WORK_POINTWISE]);
    text_add(t, "  memory_gbps: %.6g\n  host_gbps: %.6g\n  launch_us: %.6g\nlinks:\n",
             1e-9 * r->memory_Bps, 1e-9 * r->host_Bps, 1e6 * r->launch_s);
    for (int i = 0; i < r->n_levels; i++) {
        text_add(t, "  - {");
        if (i < r->n_levels - 1) text_add(t, "ranks: %d, ", r->level[i].ranks);
        text_add(t, "latency_us: %.6g, gbps: %.6g}\n", 1e6 * r->level[i].latency_s,
                 1e-9 * r->level[i].Bps);
    }
}
