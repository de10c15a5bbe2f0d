/* names.c -- maps our parameters to the tensors of Hugging Face files.
 *
 *     here                                 there
 *     h.0.attn.k_proj.weight [D, D]        h.0.attn.c_attn.weight [D, 3D], columns D .. 2D
 *     h.0.mlp.c_fc.weight    [F, D]        h.0.mlp.c_fc.weight    [D, F]
 *     model.layers.0. ...                  the same
 *     ...mlp.experts.up_proj.weight [E, F, D]
 *                                          ...mlp.experts.0.up_proj.weight [F, D], 1, 2, ... E - 1
 *                                          mixtral: ...block_sparse_moe.experts.0.w3.weight
 *     ...mlp.shared_expert.up_proj.weight  dots1: ...mlp.shared_experts.up_proj.weight */
#include "model/build.h"

#include <stdio.h>
#include <string.h>

static const char *const split[] = {"attn.q_proj.", "attn.k_proj.", "attn.v_proj."};

/* GPT-2 files store the weights of linear layers as "Conv1D", [in, out]. Embeddings and the head
 * are stored as here. */
static bool is_conv(const Param *p)
{
    return p->info.ndim == 2 && (strstr(p->name, ".attn.") || strstr(p->name, ".mlp."));
}

int64_t hf_tensors(const Param *p) { return p->info.ndim == 3 ? p->info.n[0] : 1; }

/* Mixtral's names of a feed-forward part and its weights. */
static const struct {
    const char *here, *there;
} mixtral[] = {{"gate_proj.", "w1."}, {"up_proj.", "w3."}, {"down_proj.", "w2."}};

static const char mlp[] = "mlp.", experts[] = "experts.";

/* The name after "mlp.experts.": the weight of an expert. */
static const char *weight_name(const ModelConfig *c, const char *here, char out[64])
{
    snprintf(out, 64, "%s", here);
    for (size_t i = 0; i < sizeof mixtral / sizeof *mixtral && c->family == FAMILY_MIXTRAL; i++) {
        const size_t length = strlen(mixtral[i].here);
        if (strncmp(here, mixtral[i].here, length) == 0)
            snprintf(out, 64, "%s%s", mixtral[i].there, here + length);
    }
    return out;
}

static void expert_name(const ModelConfig *c, const Param *p, int64_t i, HfPlace *place)
{
    const char *at = strstr(p->name, mlp);
    const char *folder = c->family == FAMILY_MIXTRAL ? "block_sparse_moe." : mlp;
    char weight[64];
    if (!at) return;
    const int before = (int)(at - p->name);
    const char *rest = at + strlen(mlp);
    const size_t shared = strlen("shared_expert");
    if (c->family == FAMILY_DOTS1 && strncmp(rest, "shared_expert.", shared + 1) == 0)
        snprintf(place->name, sizeof place->name, "%.*s%sshared_experts%s", before, p->name, folder,
                 rest + shared);
    else if (p->info.ndim != 3)
        snprintf(place->name, sizeof place->name, "%.*s%s%s", before, p->name, folder, rest);
    else
        snprintf(place->name, sizeof place->name, "%.*s%s%s%lld.%s", before, p->name, folder,
                 experts, (long long)i, weight_name(c, rest + strlen(experts), weight));
}

HfPlace hf_place(const ModelConfig *c, const Param *p, int64_t i)
{
    HfPlace place = {.rows = p->info.n[p->info.ndim == 3]};
    snprintf(place.name, sizeof place.name, "%s", p->name);
    if (c->experts.n) expert_name(c, p, i, &place);
    if (c->family != FAMILY_GPT2) return place;
    place.transposed = is_conv(p);
    for (int k = 0; k < 3; k++) {
        const char *at = strstr(p->name, split[k]);
        if (!at) continue;
        snprintf(place.name, sizeof place.name, "%.*sattn.c_attn.%s", (int)(at - p->name), p->name,
                 at + strlen(split[k]));
        place.from = k * p->info.n[0];
        place.rows = 3 * p->info.n[0];
    }
    return place;
}

int64_t hf_index(const HfPlace *place, const Param *p, int64_t row, int64_t column)
{
    const int64_t columns = p->info.ndim > 1 ? p->info.n[p->info.ndim - 1] : 1;
    row += place->from;
    return place->transposed ? column * place->rows + row : row * columns + column;
}
