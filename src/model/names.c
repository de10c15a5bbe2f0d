/* names.c -- maps our parameters to the tensors of Hugging Face files.
 *
 *     here                                 there
 *     h.0.attn.k_proj.weight [D, D]        h.0.attn.c_attn.weight [D, 3D], columns D .. 2D
 *     h.0.mlp.c_fc.weight    [F, D]        h.0.mlp.c_fc.weight    [D, F]
 *     model.layers.0. ...                  the same */
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

HfPlace hf_place(const ModelConfig *c, const Param *p)
{
    HfPlace place = {.rows = p->info.n[0]};
    snprintf(place.name, sizeof place.name, "%s", p->name);
    if (c->family != FAMILY_GPT2) return place;
    place.transposed = is_conv(p);
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(p->name, split[i]);
        if (!at) continue;
        snprintf(place.name, sizeof place.name, "%.*sattn.c_attn.%s", (int)(at - p->name), p->name,
                 at + strlen(split[i]));
        place.from = i * p->info.n[0];
        place.rows = 3 * p->info.n[0];
    }
    return place;
}

int64_t hf_index(const HfPlace *place, const Param *p, int64_t row, int64_t column)
{
    const int64_t columns = p->info.ndim == 2 ? p->info.n[1] : 1;
    row += place->from;
    return place->transposed ? column * place->rows + row : row * columns + column;
}
