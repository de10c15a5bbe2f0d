/* plans.c -- descriptions of plan files and cluster files. */
#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "cli/config/plan_file.h"
#include "cli/inspect/inspect.h"
#include "plan/cluster/cluster.h"

static bool is_yaml(const char *path)
{
    return inspect_ends_in(path, ".yaml") || inspect_ends_in(path, ".yml");
}

/* True if a line of the file's head begins with the word. */
static bool has_section(Bytes data, const char *word)
{
    char line[64];
    snprintf(line, sizeof line, "\n%s", word);
    return inspect_head_holds(data, line) ||
           (data.bytes >= strlen(word) && memcmp(data.at, word, strlen(word)) == 0);
}

/* ---- plan files ---- */

static bool is_plan(const char *path, Bytes data)
{
    return is_yaml(path) && has_section(data, "plan:");
}

/* True for the keys that the entries of layers have as words. */
static bool is_word(const char *name)
{
    for (int w = 0; w < N_PLAN_WORDS; w++)
        if (strcmp(key_at(plan_word_key(w))->name, name) == 0) return true;
    return false;
}

static void print_layers(const char *name, const PlanLayers *l)
{
    if (!l->origin) return;
    printf("  %-10s", name);
    for (int w = 0; w < N_PLAN_WORDS; w++)
        if (w == WORD_ZERO || strcmp(l->word[w], "none") != 0)
            printf(" %s=%s", key_at(plan_word_key(w))->name, l->word[w]);
    printf("\n");
}

static Err describe_plan(const char *path, Bytes data, Arena *a)
{
    PlanFile p;
    char bytes[24], ranks[COUNTED_BYTES], sequences[COUNTED_BYTES];
    (void)data;
    TRY(plan_file_read(path, NULL, a, &p));
    printf("%s: a plan for %s\n", path, text_counted(p.target.ranks, "rank", ranks));
    printf("  made for   model %016llx, %s, %s of %lld tokens a step\n",
           (unsigned long long)p.target.model, p.target.precision,
           text_counted(p.target.batch, "sequence", sequences), (long long)p.target.seq_len);
    fputs("  choices   ", stdout);
    for (int i = 0; i < p.n; i++)
        if (!is_word(p.at[i].name))
            printf(" %s.%s=%s", p.at[i].section, p.at[i].name, p.at[i].value.text);
    printf("\n");
    print_layers("embed", &p.embed);
    for (int i = 0; i < p.n_layers; i++) {
        char name[48];
        snprintf(name, sizeof name, "layers %lld-%lld", (long long)p.layers[i].first,
                 (long long)p.layers[i].last);
        print_layers(name, &p.layers[i]);
    }
    print_layers("head", &p.head);
    if (p.choices)
        printf("  predicted  %.6g ms a step and %s a rank for %s, unless a choice was edited\n",
               p.predicted.step_ms, text_bytes(p.predicted.memory_bytes, bytes),
               p.predicted.cluster);
    printf("  it is checked and explained by: sheaf explain run.yaml --plan %s\n", path);
    return OK;
}

/* ---- cluster files ---- */

static bool is_cluster(const char *path, Bytes data)
{
    return is_yaml(path) && has_section(data, "device:") && has_section(data, "links:");
}

static Err describe_cluster(const char *path, Bytes data, Arena *a)
{
    Cluster c;
    char bytes[24];
    (void)data;
    TRY(cluster_read(path, a, &c));
    const CostRates *r = &c.rates;
    printf("%s: a cluster file, %s\n", path, c.name);
    printf("  device     %s%s, memory at %.4g GB/s, host at %.4g GB/s\n",
           text_bytes((int64_t)c.memory_bytes, bytes), c.host_memory ? " of the host" : "",
           1e-9 * r->memory_Bps, 1e-9 * r->host_Bps);
    const double *gemm = r->flops_per_s[WORK_GEMM];
    printf("  GEMMs      Tflop/s: f64 %.4g, f32 %.4g, bf16 %.4g", 1e-12 * gemm[F64],
           1e-12 * gemm[F32], 1e-12 * gemm[BF16]);
    if (gemm[E4M3] > 0) printf(", fp8 %.4g", 1e-12 * gemm[E4M3]);
    printf("\n");
    for (int i = 0; i < r->n_levels; i++) {
        char ranks[COUNTED_BYTES] = "all ranks";
        if (r->level[i].ranks) text_counted(r->level[i].ranks, "rank", ranks);
        printf("  links      of %s: %.4g us, %.4g GB/s\n", ranks, 1e6 * r->level[i].latency_s,
               1e-9 * r->level[i].Bps);
    }
    if (r->n_tables) printf("  measured   %d tables of collectives\n", r->n_tables);
    printf("  transfers  %s\n",
           c.overlaps ? "progress while ranks compute" : "progress while ranks wait");
    return OK;
}

const InspectKind inspect_plans[] = {
    {is_plan, describe_plan}, {is_cluster, describe_cluster}, {NULL, NULL}};
