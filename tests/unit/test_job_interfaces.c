/* test_job_interfaces.c -- interfaces between compiler, linker and executor: queues with begin
 * and wait; strides, memory spaces and views; names; transfers that address arenas, groups that
 * live for a step; one list for any number of ranks. */
#include "comm/local/local.h"
#include "schedule/check/check.h"
#include "schedule/text_form.h"
#include "support/expect.h"
#include "support/jobs.h"

static JobSettings offloading(const char *model, bool split)
{
    JobSettings set = test_job_settings(model, JOB_STEP);
    set.schedule = "gpipe";
    set.split = split;
    set.compile.offload_names = "attn.in,mlp.*,mid";
    return set;
}

static Queue queue_of(OpId op)
{
    return op == OP_copy_out ? QUEUE_D2H : op == OP_copy_in ? QUEUE_H2D : QUEUE_COMPUTE;
}

/* Every instruction is on the queue of its op; every begin on another queue has a wait. */
static int check_queues(const Program *p)
{
    int begun = 0, waited = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const Instr *in = &p->instr[i];
        assert_int_equal(in->queue, queue_of(in->op));
        begun += in->queue != QUEUE_COMPUTE;
        waited += in->op == OP_wait;
    }
    assert_int_equal(begun, waited);
    return begun;
}

static void instructions_name_queues(void **state)
{
    (void)state;
    static TestJob t;
    for (const TestModel *m = test_models; m->name; m++) {
        const JobSettings set = offloading(m->name, false);
        DO(test_job_open(&t, &set, 1));
        for (int k = 0; k < t.job.model.n_kinds; k++) {
            const int begun = check_queues(&t.job.program[k]);
            const bool layer = k > 0 && k < t.job.model.n_kinds - 1;
            assert_true((begun > 0) == layer); /* only layers offload values */
        }
        test_job_close(&t);
    }
}

/* A copy may complete at its begin or at its wait; the bits are the same. */
static void copies_may_be_late(void **state)
{
    (void)state;
    static TestJob t[2];
    for (int split = 0; split < 2; split++) {
        const JobSettings set = offloading(split ? "gpt2" : "qwen2", split);
        StepResult result[2];
        for (int late = 0; late < 2; late++) {
            DO(test_job_open(&t[late], &set, 1));
            t[late].rank.settings.late = late;
            for (int step = 1; step <= 3; step++)
                DO(rank_step(&t[late].rank, &(StepSettings){.step = step, .lr = 1e-2},
                             &result[late]));
        }
        int p;
        assert_true(result[0].loss_sum == result[1].loss_sum);
        assert_true(ranks_equal(&t[0].rank, &t[1].rank, PART_WEIGHT, &p));
        test_job_close(&t[0]);
        test_job_close(&t[1]);
    }
}

/* A graph and a program in which a copy is read before its wait are refused. */
static void missing_wait_is_refused(void **state)
{
    (void)state;
    static TestJob t;
    const JobSettings set = offloading("llama", true);
    DO(test_job_open(&t, &set, 1));
    Graph g;
    graph_init(&g, "hasty", F64, &t.arena);
    const Value x = stream_in(&g, dim_of(5), 3);
    stream_out(&g, gelu(&g, copy_in(&g, wait_for(&g, copy_out(&g, x)))));
    expect_error("graph", graph_check(&g), ERR_CHECK, "read before the wait");

    Program p = t.job.program[1];
    Instr *instr;
    DO(ARENA_NEW(&t.arena, p.n_instr, &instr));
    memcpy(instr, p.instr, (size_t)p.n_instr * sizeof *instr);
    p.instr = instr;
    DO(program_check(&p));
    int wait = p.first[PHASE_I];
    while (instr[wait].op != OP_wait) wait++;
    const int32_t copy = instr[wait].in[0];
    const Instr moved = instr[wait];
    for (bool read = false; !read; wait++) { /* to right after its first reader */
        assert_true(wait + 1 < p.first[PHASE_I + 1]);
        instr[wait] = instr[wait + 1];
        for (int k = 0; k < instr[wait].n_in; k++)
            read = read || p.tensor[instr[wait].in[k]].view_of == p.tensor[copy].view_of;
    }
    instr[wait] = moved;
    expect_error("program", program_check(&p), ERR_CHECK, "read before the wait");
    test_job_close(&t);
}

static const ProgTensor *tensor_named(const Program *p, const char *name)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensor[i].name, name) == 0) return &p->tensor[i];
    fail_msg("program %s has no tensor %s", p->kind, name);
    return NULL;
}

/* q, k and v are parts of one GEMM's output: H and K heads of c, back to back in each row. */
static void parts_are_views(void **state)
{
    (void)state;
    static TestJob t;
    const JobSettings set = test_job_settings("llama", JOB_GRADIENTS);
    DO(test_job_open(&t, &set, 1));
    const ModelConfig *c = set.config;
    const int64_t H = c->n_heads * c->head_size, K = c->n_kv_heads * c->head_size;
    const int64_t from[] = {0, H, H + K};
    const char *const name[] = {"attn.q", "attn.k", "attn.v"};
    const Program *p = &t.job.program[1];
    const ProgTensor *root = &p->tensor[tensor_named(p, "attn.q")->view_of];
    assert_int_equal(root->dim[1].cap, H + 2 * K);
    for (int i = 0; i < 3; i++) {
        const ProgTensor *v = tensor_named(p, name[i]);
        assert_ptr_equal(&p->tensor[v->view_of], root);
        assert_int_equal(v->stride[0], H + 2 * K);
        assert_int_equal(v->stride[1], c->head_size);
        assert_int_equal(v->stride[2], 1);
        for (int m = 0; m < N_MODES; m++) {
            assert_int_equal(v->at[m].region, root->at[m].region);
            assert_int_equal(v->at[m].offset,
                             root->at[m].offset + (size_t)from[i] * sizeof(double));
        }
    }
    test_job_close(&t);
}

/* Offloaded values are written to the host's arena, within its bytes. */
static void host_tensors_are_in_the_host_arena(void **state)
{
    (void)state;
    static TestJob t;
    JobSettings set = offloading("gpt2", false);
    StepResult result;
    DO(test_job_open(&t, &set, 1));
    const size_t bytes = t.job.linked.bytes[ARENA_HOST];
    size_t each = 0, written = 0;
    for (int i = 0; i < t.job.program[1].n_tensors; i++) {
        const ProgTensor *x = &t.job.program[1].tensor[i];
        assert_int_equal(x->space == SPACE_HOST, x->at[SPLIT].region == REGION_HOST);
        if (x->space == SPACE_HOST && x->view_of == i) each += align_up(tensor_bytes(x));
    }
    assert_true(each > 0);
    assert_int_equal(bytes, each * 2 * 2); /* two layers, two micro-batches in flight */
    DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 1e-3}, &result));
    for (size_t i = 0; i < bytes; i++) written += (unsigned char)t.rank.base[ARENA_HOST][i] != 0xFF;
    assert_true(written > bytes / 2);
    test_job_close(&t);
    set.compile.offload_names = NULL;
    DO(test_job_open(&t, &set, 1));
    assert_int_equal(t.job.linked.bytes[ARENA_HOST], 0);
    test_job_close(&t);
}

static void values_have_names(void **state)
{
    (void)state;
    static TestJob t;
    char a[VALUE_NAME_BYTES], b[VALUE_NAME_BYTES];
    ModelConfig config = *test_model("llama");
    JobSettings set = test_job_settings("llama", JOB_GRADIENTS);
    config.n_layers = 4;
    set.config = &config;
    DO(test_job_open(&t, &set, 1));
    const Model *m = &t.job.model;
    assert_string_equal(model_value_name(m, 4, "attn.in", a), "layer.3.attn.in");
    tensor_named(&t.job.program[m->unit[4].kind], "attn.in");
    tensor_named(&t.job.program[m->unit[4].kind], "d.attn.in");
    for (int u = 0; u < m->n_units; u++) /* no two are the same */
        for (int w = 0; w < m->n_units; w++) {
            const Program *p = &t.job.program[m->unit[u].kind],
                          *q = &t.job.program[m->unit[w].kind];
            for (int i = 0; i < p->n_tensors; i++)
                for (int k = 0; k < q->n_tensors; k++) {
                    if (!p->tensor[i].name[0] || (u == w && i == k)) continue;
                    assert_string_not_equal(model_value_name(m, u, p->tensor[i].name, a),
                                            model_value_name(m, w, q->tensor[k].name, b));
                }
        }
    test_job_close(&t);
}

/* A transfer names (rank, arena, offset); its group lives for a step. */
static void transfers_address_arenas(void **state)
{
    (void)state;
    static TestJob t;
    const JobSettings set = test_job_settings("gpt2", JOB_STEP);
    const CommSettings of = {.ranks = 1, .in_flight = 2, .records = 8};
    const int32_t me[] = {0};
    const RankList group = {1, me};
    Comm *comm;
    Rank r;
    DO(test_job_open(&t, &set, 1));
    DO(local_open(&t.arena, &of, &comm));
    DO(job_open_rank(&t.job, comm, NULL, &r));
    int32_t serial[2];
    for (int step = 0; step < 2; step++) {
        double *from = (double *)(void *)(r.base[ARENA_WORK] + 128);
        for (int i = 0; i < 7; i++) from[i] = 100 * step + i;
        const Transfer move = {.kind = COMM_ALL_GATHER,
                               .group = group,
                               .from = {0, ARENA_WORK, 128, 7, F64},
                               .to = {0, ARENA_STEP, 64, 7, F64}};
        DO(comm_do(comm, &move));
        assert_memory_equal(r.base[ARENA_STEP] + 64, from, 7 * sizeof *from);
        serial[step] = recorder_at(comm_recorder(comm), step)->group;
        assert_int_equal(comm_group(comm, serial[step]).n, 1);
        DO(comm_group_end(comm, group, 0));
        assert_int_equal(comm_group(comm, serial[step]).n, 0);
    }
    assert_int_not_equal(serial[0], serial[1]);
    const Transfer past = {.kind = COMM_ALL_REDUCE,
                           .group = group,
                           .from = {0, ARENA_WORK, t.job.linked.bytes[ARENA_WORK], 1, F64},
                           .to = {0, ARENA_STEP, 0, 1, F64}};
    assert_int_equal(comm_do(comm, &past), ERR_CHECK); /* beyond the size that linking computed */
    rank_close(&r);
    comm_close(comm);
    test_job_close(&t);
}

/* One rank runs a list like any other: printed, parsed and linked, it is the same program. */
static void one_rank_has_a_list(void **state)
{
    (void)state;
    static TestJob t;
    const JobSettings set = offloading("mistral", true);
    const char *text;
    Schedule s;
    LinkedProgram lp;
    DO(test_job_open(&t, &set, 1));
    DO(schedule_print(&t.job.units, &t.arena, &text));
    DO(schedule_parse("units", text, strlen(text), &t.arena, &s));
    DO(schedule_check(&s, &t.arena));
    assert_true(schedule_equal(&s, &t.job.units));
    const LinkInput in = {
        .model = &t.job.model, .program = t.job.program, .n_moments = 2, .block = set.optim.block};
    DO(schedule_link(&s, 0, &in, &t.arena, &lp));
    assert_int_equal(lp.n, t.job.linked.n);
    assert_memory_equal(lp.bytes, t.job.linked.bytes, sizeof lp.bytes);
    for (int i = 0; i < lp.n; i++) {
        const LinkedAction *a = &lp.list[i], *b = &t.job.linked.list[i];
        assert_ptr_equal(a->program, b->program);
        assert_memory_equal(a->base, b->base, sizeof a->base);
        assert_true(a->fresh == b->fresh && a->begins == b->begins);
    }
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instructions_name_queues),
        cmocka_unit_test(copies_may_be_late),
        cmocka_unit_test(missing_wait_is_refused),
        cmocka_unit_test(parts_are_views),
        cmocka_unit_test(host_tensors_are_in_the_host_arena),
        cmocka_unit_test(values_have_names),
        cmocka_unit_test(transfers_address_arenas),
        cmocka_unit_test(one_rank_has_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
