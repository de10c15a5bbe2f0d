/* test_program_faults.c -- program_check finds faults. Each row breaks one thing of a layer's
 * program, and the message must name the phase, the instruction and the tensor. */
#include "support/graph_test.h"

#include "ir/program.h"
#include "model/config.h"

/* A program that can be broken: its tables are writable. */
typedef struct {
    GraphTest test;
    Program p;
    Instr *instr;
    ProgTensor *tensor;
} Broken;

/* A gpt2 layer: biases, fused GEMMs, gelu recomputed, mid on the host. */
static void open_program(Broken *b)
{
    ModelConfig config;
    Model model;
    graph_test_open(&b->test, "");
    Arena *arena = &b->test.arena;
    DO(model_config_load("gpt2-tiny", NULL, 0, arena, &config));
    DO(model_build(&config, F32, (BatchShape){2, 8}, arena, &model));
    const CompileOptions options = {.recompute = RECOMPUTE_SELECTIVE,
                                    .offload_names = "mid",
                                    .backward = true,
                                    .strategy = &strategy_tp,
                                    .mesh = &b->test.mesh};
    DO(compile_unit(&model.kind[1], &options, NULL, NULL, arena, &b->p));
    DO(ARENA_NEW(arena, b->p.n_instr, &b->instr));
    DO(ARENA_NEW(arena, b->p.n_tensors, &b->tensor));
    memcpy(b->instr, b->p.instr, (size_t)b->p.n_instr * sizeof *b->instr);
    memcpy(b->tensor, b->p.tensor, (size_t)b->p.n_tensors * sizeof *b->tensor);
    b->p.instr = b->instr;
    b->p.tensor = b->tensor;
}

/* Instruction `skip` + 1 of its op in that phase. */
static Instr *find(Broken *b, Phase phase, OpId op, int skip)
{
    for (int i = b->p.first[phase]; i < b->p.first[phase + 1]; i++)
        if (b->instr[i].op == op && skip-- == 0) return &b->instr[i];
    fail_msg("no %s in %s", op_info(op)->name, phase_name(phase));
    return NULL;
}

static ProgTensor *named(Broken *b, const char *name)
{
    for (int t = 0; t < b->p.n_tensors; t++)
        if (strcmp(b->tensor[t].name, name) == 0) return &b->tensor[t];
    fail_msg("no tensor %s", name);
    return NULL;
}

static int32_t id(Broken *b, const char *name) { return (int32_t)(named(b, name) - b->tensor); }

static void swap(Instr *a, Instr *b)
{
    const Instr c = *a;
    *a = *b;
    *b = c;
}

static void in_unknown(Broken *b) { find(b, PHASE_F, OP_linear_gelu, 0)->in[0] = b->p.n_tensors; }
static void out_unknown(Broken *b) { find(b, PHASE_F, OP_linear_gelu, 0)->out[0] = -1; }
static void root_unknown(Broken *b) { named(b, "mlp.up")->view_of = b->p.n_tensors; }
static void view_outside(Broken *b) { named(b, "attn.q")->at[SPLIT].offset += 1 << 20; }
static void past_scratch(Broken *b) { b->p.scratch_bytes[PHASE_F] -= ARENA_ALIGN; }
static void past_frame(Broken *b) { b->p.bytes[REGION_FRAME_W] = ARENA_ALIGN; }
static void past_merged(Broken *b) { b->p.scratch_bytes[PHASE_B] = 0; }
static void misaligned(Broken *b) { named(b, "attn.out")->at[SPLIT].offset += 4; }
static void slot_unknown(Broken *b) { find(b, PHASE_W, OP_linear_dw, 0)->keep[0] = N_SLOTS; }
static void slot_negative(Broken *b) { find(b, PHASE_W, OP_linear_dw, 0)->keep[0] = -1; }
static void queue_unknown(Broken *b) { find(b, PHASE_F, OP_linear_gelu, 0)->queue = N_QUEUES; }
static void copy_on_compute(Broken *b) { find(b, PHASE_F, OP_copy_out, 0)->queue = QUEUE_COMPUTE; }
static void compute_on_copy(Broken *b) { find(b, PHASE_F, OP_linear_gelu, 0)->queue = QUEUE_D2H; }
static void reads_host(Broken *b) { named(b, "mlp.up")->space = SPACE_HOST; }
static void writes_x(Broken *b) { find(b, PHASE_F, OP_linear_gelu, 0)->out[0] = id(b, "x"); }
static void other_phase(Broken *b) { find(b, PHASE_I, OP_linear_dgelu, 0)->phase = PHASE_F; }
static void before_written(Broken *b)
{
    Instr *gelu = find(b, PHASE_F, OP_linear_gelu, 0);
    swap(gelu, gelu + 1); /* the GEMM that reads mlp.act */
}
static void never_in_this_mode(Broken *b) /* F alone makes it, and B reads it */
{
    find(b, PHASE_B, OP_linear_dw, 0)->in[0] = find(b, PHASE_I, OP_linear_dgelu, 0)->out[0];
}
static void not_waited(Broken *b)
{
    Instr *wait = find(b, PHASE_F, OP_wait, 0);
    *wait = *find(b, PHASE_F, OP_linear_gelu, 0);
}
static void before_wait(Broken *b)
{
    Instr *wait = find(b, PHASE_B, OP_wait, 0);
    swap(wait, wait + 1);
}
static void written_over(Broken *b) /* y overlaps mid, which is copied out after it */
{
    ProgTensor *mid = named(b, "mid"), *y = named(b, "y");
    y->view_of = mid->view_of;
    for (int m = 0; m < N_MODES; m++) y->at[m] = mid->at[m];
}
static void view_written_over(Broken *b) /* attention_dx reads the part that was k */
{
    find(b, PHASE_F, OP_linear_add, 1)->out[0] = id(b, "attn.k");
}
static void share_scratch(Broken *b) /* two that F reads and writes in one instruction */
{
    const Instr *i = find(b, PHASE_F, OP_layernorm, 1);
    for (int m = 0; m < N_MODES; m++) b->tensor[i->out[1]].at[m] = b->tensor[i->out[0]].at[m];
}
static void share_frame(Broken *b) /* frames live on: their parts may never overlap */
{
    const Instr *i = find(b, PHASE_F, OP_attention, 0);
    const ProgTensor *gemm = &b->tensor[b->tensor[i->in[0]].view_of];
    for (int m = 0; m < N_MODES; m++) b->tensor[i->out[1]].at[m] = gemm->at[m];
}

static const struct {
    const char *name;
    void (*breaks)(Broken *b);
    const char *message;
} faults[] = {
    {"an input that is none", in_unknown, "gelu, tensor %"},
    {"an output that is none", out_unknown, "gelu, tensor %-1 : there is no such tensor"},
    {"a root that is none", root_unknown, "mlp.up: it is a view of a tensor that does not exist"},
    {"a view outside", view_outside, "attn.q: it reaches past the tensor that it is a view of"},
    {"past scratch", past_scratch, "it reaches past its region"},
    {"past the frame", past_frame, "it reaches past its region"},
    {"past scratch of B", past_merged, "program layer: B "},
    {"misaligned", misaligned, "attn.out: it is not aligned"},
    {"a slot that is none", slot_unknown, "its slot does not exist"},
    {"a slot below 0", slot_negative, "linear_dw, tensor %"},
    {"a queue that is none", queue_unknown, "mlp.act: there is no such queue"},
    {"a copy on compute", copy_on_compute, "copy_out, tensor %"},
    {"a kernel on d2h", compute_on_copy, "mlp.act: the op is on the wrong queue"},
    {"reads the host", reads_host, "gelu, tensor %"},
    {"writes x", writes_x, "x: it is read-only"},
    {"in another list", other_phase, "it stands in the list of another phase"},
    {"before it is written", before_written, "mlp.act: it is read before it is written"},
    {"made in another mode", never_in_this_mode, "it is read before it is written"},
    {"not waited for", not_waited, "ends before the wait for tensor"},
    {"before the wait", before_wait, "it is read before the wait"},
    {"written over", written_over, "copy_out, tensor %"},
    {"a view written over", view_written_over, "attn.k: it is read after it was written over"},
    {"scratch shared", share_scratch, "while both live"},
    {"frame shared", share_frame, "attn.lse and %78  share bytes of frame-i while both live"},
};

static void faults_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        Broken b;
        open_program(&b);
        DO(program_check(&b.p));
        faults[i].breaks(&b);
        expect_error(faults[i].name, program_check(&b.p), ERR_CHECK, faults[i].message);
        if (!strstr(err_text(), "program layer: ")) fail_msg("%s: which?", faults[i].name);
        graph_test_close(&b.test);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
