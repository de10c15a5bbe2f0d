#include "support/verified.h"

#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "device/ref/ref.h"

static VerifySettings settings(const ModelConfig *config, int64_t micro, int64_t tokens)
{
    return (VerifySettings){.config = config,
                            .batch = {micro, tokens},
                            .schedule = "1f1b",
                            .optim = {.kind = OPTIM_ADAMW,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .clip = 0.5,
                                      .block = 16},
                            .lr = 1e-3,
                            .seed = 5,
                            .steps = 2};
}

VerifySettings verified_f64(const ModelConfig *config, int64_t micro, int64_t tokens)
{
    VerifySettings s = settings(config, micro, tokens);
    s.device = &device_ref;
    s.dtype = F64;
    s.is_plain = true;
    return s;
}

VerifySettings verified_cpu(const ModelConfig *config, DType dtype, int64_t micro, int64_t tokens)
{
    VerifySettings s = settings(config, micro, tokens);
    DO(device_cpu_open(NULL, &s.device));
    s.dtype = dtype;
    return s;
}

static void expect_ok(const VerifySettings *s, const char *words, const VerifyLine *l)
{
    if (l->ok) return;
    fail_msg(
        "%s, %d heads, %d of keys, %d tokens, recompute %d, documents %d: %s: grade %s: "
        "loss %.1e, norm %.1e, validation %.1e, gradient of %s %.1e, weights %.1e, bound %.1e, "
        "copies %.1e, same text %d, sent %lld, predicted %lld",
        s->config->name, (int)s->config->n_heads, (int)s->config->n_kv_heads, (int)s->batch.seq_len,
        (int)s->compile.recompute, s->documents, words, grade_name(l->grade), l->loss, l->norm,
        l->valid, l->worst, l->gradient, l->weight, l->bound, l->copies, l->same_text,
        (long long)l->sent_bytes, (long long)l->predicted_bytes);
}

int expect_verified(const VerifySettings *s, const ParallelSettings *layout, Arena *arena,
                    VerifyLine *line)
{
    char words[LAYOUT_TEXT_BYTES];
    int n;
    layout_words(layout, words);
    if (verify_layout(s, layout, arena, line, &n) != OK)
        fail_msg("%s: %s: %s", s->config->name, words, err_text());
    assert_true(n > 0);
    for (int i = 0; i < n; i++) expect_ok(s, words, &line[i]);
    return n;
}

void expect_verified_words(const VerifySettings *s, const char *words)
{
    VerifyLine line[MAX_VERIFY_LINES];
    ParallelSettings layout;
    Arena arena;
    DO(layout_parse(words, strlen(words), &layout));
    DO(arena_open(&arena, "verify", ARENA_PLENTY));
    const int n = expect_verified(s, &layout, &arena, line);
    assert_true(s->is_plain || n >= 2);
    for (int i = 0; i < n; i++) {
        assert_true(line[i].sent_bytes > 0);
        assert_int_equal(line[i].sent_bytes, line[i].predicted_bytes);
    }
    arena_close(&arena);
}
