/* experts_cover.h -- a mixture of experts computes the same model on every mesh: f64 on ref, within
 * 1e-10 of one rank, with gradients, grad_norm, weights, the losses of the router and generated
 * text. The layouts cover every pair, or triple, of options on up to 8 ranks, experts' axes among
 * them: they are folded over tp, cp and dp in every way that divides them. Bytes sent are those
 * predicted. Recomputation, capacity, the kind of router and the expert that all tokens have
 * rotate. */
#ifndef TESTS_UNIT_EXPERTS_COVER_H
#define TESTS_UNIT_EXPERTS_COVER_H

#include "support/expect.h"
#include "support/models.h"

#include "verify/verify.h"

enum { MAX_RANKS = 8, MAX_STAGES = 2, STEPS = 2, SEQ = 7, EXPERTS = 24 };

static inline ModelConfig model_with(int64_t shared_width, double capacity)
{
    ModelConfig c = *test_model("qwen2_moe"); /* the first of two layers is dense */
    /* Two equal tokens at the start of a sequence have equal gates but for rounding, which would
     * decide on the one to drop: they must be rare. */
    c.vocab = 499;
    c.experts.n = EXPERTS;
    c.experts.chosen = 3;
    c.experts.width = 9;
    c.experts.shared_width = shared_width;
    c.experts.renormalize = true;
    c.experts.aux_loss = 0.2;
    c.experts.z_loss = 0.05;
    c.experts.capacity = capacity; /* drops about one choice of five */
    c.experts.drop_by_gate = shared_width > 0;
    return c;
}

/* DeepSeek's router: sigmoid, groups, a bias that steps move, scaled gates; no shared gate. */
static inline ModelConfig deepseek_router(void)
{
    ModelConfig c = model_with(10, 0);
    c.experts.score = ROUTE_SIGMOID;
    c.experts.bias = true;
    c.experts.groups = 6;
    c.experts.chosen_groups = 2;
    c.experts.group_best = 2;
    c.experts.scaling = 2.5;
    c.experts.shared_gate = false;
    c.experts.balance_global = true;
    return c;
}

static inline VerifySettings settings_for(const ModelConfig *config)
{
    return (VerifySettings){.config = config,
                            .batch = {2, SEQ}, /* the last micro-batch has one sequence */
                            .device = &device_ref,
                            .dtype = F64,
                            .schedule = "1f1b",
                            .optim = {.kind = OPTIM_ADAMW,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .clip = 0.5,
                                      .bias_rate = 0.02,
                                      .block = 16},
                            .lr = 1e-3,
                            .seed = 11,
                            .steps = STEPS,
                            .is_plain = true};
}

static inline void expect_same(const VerifySettings *s, const ParallelSettings *layout,
                               Arena *arena)
{
    VerifyLine line[MAX_VERIFY_LINES];
    char words[LAYOUT_TEXT_BYTES];
    int n;
    if (verify_layout(s, layout, arena, line, &n) != OK)
        fail_msg("%s: %s", layout_words(layout, words), err_text());
    for (int i = 0; i < n; i++)
        if (!line[i].ok)
            fail_msg("%s: loss %.1e, norm %.1e, valid %.1e, gradient of %s %.1e, weights %.1e, "
                     "copies %.1e, sent %lld, predicted %lld, text %d",
                     layout_words(layout, words), line[i].loss, line[i].norm, line[i].valid,
                     line[i].worst, line[i].gradient, line[i].weight, line[i].copies,
                     (long long)line[i].sent_bytes, (long long)line[i].predicted_bytes,
                     line[i].same_text);
}

/* Returns the number of layouts. */
static inline int expect_cover(int ranks, int strength)
{
    const ModelConfig model[4] = {model_with(10, 0), model_with(0, 0.9), model_with(10, 1.1),
                                  deepseek_router()};
    ParallelSettings *layout;
    Arena arena;
    int n, sharded = 0;
    const LayoutLimits limits = {.ranks = ranks,
                                 .stages = MAX_STAGES,
                                 .heads = 4,
                                 .key_heads = 2,
                                 .strength = strength,
                                 .experts = EXPERTS,
                                 .head_size = 4};
    DO(arena_open(&arena, "pairs", ARENA_PLENTY));
    DO(layouts_covering(&limits, &arena, &layout, &n));
    for (int i = 0; i < n; i++) {
        VerifySettings s = settings_for(&model[i % 4]);
        const size_t mark = arena_mark(&arena);
        if (layout[i].mesh.ep == 1 && layout[i].mesh.etp == 1) continue; /* test_ranks_pairs */
        s.compile.recompute = i / 4 % 3 ? RECOMPUTE_NONE : RECOMPUTE_FULL;
        expect_same(&s, &layout[i], &arena);
        sharded++;
        arena_rewind(&arena, mark);
    }
    assert_true(sharded > n / 3);
    arena_close(&arena);
    return n;
}

#endif
