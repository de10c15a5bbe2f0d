/* test_pass_place_context.c -- units compiled for ranks along cp; nothing runs. */
#include "place_test.h"

#include <math.h>
#include "compile/place.h"
#include "ir/build.h"
#include "ir/program.h"
#include "layout/tokens.h"

static Mesh mesh_cp(int cp)
{
    Mesh m;
    DO(mesh_sized(&(MeshSizes){.cp = cp}, &m));
    return m;
}

/* The layer of a model, compiled for all ranks of the mesh. */
static void layer_open(Ranks *r, ModelBed *m, const char *name, const Mesh *mesh, bool backward)
{
    model_bed_open(m, test_model(name));
    const Strategy s = strategy_with_context(&m->plain, CONTEXT_GATHER, mesh);
    const Strategy with =
        strategy_with_heads(&s, m->config.n_heads, m->config.n_kv_heads, m->config.head_size);
    ranks_open_mesh(r, &m->model.kind[1],
                    &(CompileOptions){.backward = backward, .strategy = &with}, mesh);
}

/* Keys and values that are parts of a fused GEMM, or overwrite one in place, have gaps. Without a
 * backward part nothing else keeps q, k and v from being fused. */
static void messages_are_contiguous(void **state)
{
    static const char *const name[] = {"gpt2", "llama", "qwen3"};
    (void)state;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        for (int cp = 2; cp <= 4; cp++)
            for (int backward = 0; backward < 2; backward++) {
                const Mesh mesh = mesh_cp(cp);
                ModelBed m;
                Ranks r;
                layer_open(&r, &m, name[i], &mesh, backward);
                assert_true(ranks_agree(&r, name[i]) >= 2);
                ranks_close(&r);
                model_bed_close(&m);
            }
}

/* program_check refuses a message with gaps, on either side. */
static void gaps_are_refused(void **state)
{
    const Mesh mesh = mesh_cp(2);
    ModelBed m;
    Ranks r;
    (void)state;
    layer_open(&r, &m, "llama", &mesh, true);
    Program p = r.program[0];
    const Instr *in = nth_transfer(&p, PHASE_F, 0);
    for (int side = 0; side < 2; side++) {
        ProgTensor *tensor;
        DO(ARENA_NEW(&r.arena, p.n_tensors, &tensor));
        memcpy(tensor, r.program[0].tensor, (size_t)p.n_tensors * sizeof *tensor);
        p.tensor = tensor;
        DO(program_check(&p));
        tensor[side ? in->out[0] : in->in[0]].stride[0] += 1;
        expect_error("gaps", program_check(&p), ERR_CHECK,
                     "it is moved between ranks, but is not contiguous");
    }
    ranks_close(&r);
    model_bed_close(&m);
}

/* The nodes that reshard x [6,4] on cp=3 tp=2, for one rank, by name. */
static void reshard_is(DType dtype, const Layout *from, const Layout *to, const char *words)
{
    Arena arena;
    Graph g;
    Mesh mesh;
    char got[256] = "";
    DO(mesh_sized(&(MeshSizes){.cp = 3, .tp = 2}, &mesh));
    DO(arena_open(&arena, "reshard", (size_t)1 << 24));
    graph_init(&g, "test", F32, &arena);
    const Dims dims = dims2(dim_of(6), dim_of(4));
    const Value x = graph_value(&g, ROLE_X, "x", dtype, dims);
    PlacedGraph p = {.g = &g, .mesh = &mesh, .rank = 3};
    const ReshardRequest m = {.from = *from,
                              .to = *to,
                              .shape = {2, {6, 4}},
                              .dims = local_dims(&dims, to, &mesh, p.rank),
                              .into = NO_VALUE};
    const Value y = place_reshard(&p, x, &m);
    DO(graph_err(&g));
    DO(graph_check(&g));
    for (int i = 0; i < 2; i++) assert_int_equal(g.value[y].dims.dim[i].cap, m.dims.dim[i].cap);
    for (int i = 0; i < g.n_nodes; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", op_info(g.node[i].op)->name);
    assert_string_equal(got, words);
    arena_close(&arena);
}

/* A sum over tp that is whole along cp, read by parts along cp. */
static void sums_are_sliced(void **state)
{
    Mesh mesh;
    (void)state;
    DO(mesh_sized(&(MeshSizes){.cp = 3, .tp = 2}, &mesh));
    const unsigned cp = mesh_axes(&mesh, VIEW_DENSE, "cp"), tp = mesh_axes(&mesh, VIEW_DENSE, "tp");
    const Layout whole = layout_replicate(VIEW_DENSE), sum = layout_partial(whole, tp);
    const Layout rows = layout_cut(whole, 0, cp, 1), columns = layout_cut(whole, 1, cp, 1);
    reshard_is(F32, &sum, &whole, "all_reduce wait ");
    reshard_is(F32, &sum, &rows, "part all_reduce wait ");
    reshard_is(F32, &sum, &columns, "pack all_reduce wait ");
    const Layout both = strategy_nested(layout_cut(rows, 0, tp, 1), &mesh, 0);
    reshard_is(F32, &sum, &both, "pack reduce_scatter wait ");
}

/* Rows of an input of integers that are not one box: zigzag tokens. */
static void integers_are_packed(void **state)
{
    Arena arena;
    Mesh mesh;
    const SpanMap *map;
    (void)state;
    DO(arena_open(&arena, "map", (size_t)1 << 20));
    DO(mesh_sized(&(MeshSizes){.cp = 3, .tp = 2}, &mesh));
    DO(tokens_map(&arena, TOKENS_ZIGZAG, 1, 6, 3, &map));
    const unsigned cp = mesh_axes(&mesh, VIEW_DENSE, "cp");
    const Layout whole = layout_replicate(VIEW_DENSE), rows = layout_cut_map(whole, 0, cp, map);
    reshard_is(I32, &whole, &rows, "pack ");
    reshard_is(I32, &rows, &whole, "all_gather wait pack ");
    arena_close(&arena);
}

static int place_in_list(const int *list, int n, int node)
{
    for (int i = 0; i < n; i++)
        if (list[i] == node) return i;
    return -1;
}

/* x by columns -> by rows, read there, -> by columns: the second transfer is ready as soon as the
 * first is done, in the middle of the visit of the unpack between them. */
static void unpacks_precede_the_next_transfer(void **state)
{
    Arena arena;
    Graph g;
    Mesh mesh;
    int *list, n, *maker;
    (void)state;
    DO(mesh_sized(&(MeshSizes){.cp = 3}, &mesh));
    DO(arena_open(&arena, "order", (size_t)1 << 24));
    graph_init(&g, "test", F32, &arena);
    const unsigned cp = mesh_axes(&mesh, VIEW_DENSE, "cp");
    const Layout whole = layout_replicate(VIEW_DENSE);
    const Layout rows = layout_cut(whole, 0, cp, 1), columns = layout_cut(whole, 1, cp, 1);
    const Dims dims = dims2(dim_of(6), dim_of(6));
    const Dims by_row = local_dims(&dims, &rows, &mesh, 1);
    const Dims by_column = local_dims(&dims, &columns, &mesh, 1);
    PlacedGraph p = {.g = &g, .mesh = &mesh, .rank = 1};
    const Value x = graph_value(&g, ROLE_X, "x", F32, by_column);
    const Shape shape = {2, {6, 6}};
    const Value a = place_reshard(
        &p, x,
        &(ReshardRequest){
            .from = columns, .to = rows, .shape = shape, .dims = by_row, .into = NO_VALUE});
    add(&g, a, a);
    place_reshard(
        &p, a,
        &(ReshardRequest){
            .from = rows, .to = columns, .shape = shape, .dims = by_column, .into = NO_VALUE});
    DO(graph_err(&g));
    DO(order(&g, PHASE_F, &arena, &list, &n));
    DO(graph_makers(&g, &arena, &maker));
    assert_int_equal(n, g.n_nodes);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < g.node[list[i]].n_in; j++) {
            const int from = maker[g.node[list[i]].in[j]];
            if (from != NO_NODE) assert_true(place_in_list(list, n, from) < i);
        }
    arena_close(&arena);
}

/* A layer with 8 heads and 2 key heads of 4, for two sequences, on a mesh. */
enum { HEADS = 8, KEYS = 2, HEAD = 4, TOKENS = 24 };

static void wide_layer(Ranks *r, ModelBed *m, int64_t tokens, ContextKind kind,
                       const MeshSizes *sizes)
{
    Mesh mesh;
    m->config = wide_model();
    m->config.max_positions = tokens;
    DO(arena_open(&m->arena, "model", (size_t)1 << 30));
    DO(model_build(&m->config, F32, (BatchShape){2, tokens / 2}, &m->arena, &m->model));
    DO(mesh_sized(sizes, &mesh));
    const Strategy s = strategy_with_context(&strategy_tp, kind, &mesh);
    const Strategy with = strategy_with_heads(&s, HEADS, KEYS, HEAD);
    ranks_open_mesh(r, &m->model.kind[1], &(CompileOptions){.backward = true, .strategy = &with},
                    &mesh);
}

/* Elements that one rank sends over cp; tp sends by all-reduces. */
static int64_t context_sent(const Ranks *r)
{
    int64_t sent = 0;
    for (int phase = PHASE_F; phase <= PHASE_W; phase++)
        sent += ranks_sent_all(r, (Phase)phase) - ranks_sent(r, (Phase)phase, OP_all_reduce);
    assert_int_equal(sent % r->n, 0);
    return sent / r->n;
}

static double heavy_flops(const Ranks *r)
{
    double flops = 0;
    for (int k = 0; k < r->n; k++)
        for (int i = 0; i < r->program[k].first[PHASE_B]; i++)
            flops += r->program[k].instr[i].heavy_flops;
    return flops;
}

/* Forward and backward of a layer: all-gather 6 f S K; Ulysses 4 (H + K) S f / P, with one key head
 * on each rank 4 S H f / P + 4 f S d; f = (P - 1) / P. Widths H and K are those that tp leaves.
 * All ranks together run the flops of one. */
static void elements_and_flops(void **state)
{
    enum { H = HEADS * HEAD, K = KEYS * HEAD, S = TOKENS };
    static const struct {
        ContextKind kind;
        int cp, heads, tp;
        int64_t sent;
    } row[] = {{CONTEXT_GATHER, 2, 0, 1, 6 * S * K / 2},
               {CONTEXT_GATHER, 3, 0, 1, 6 * S * K * 2 / 3},
               {CONTEXT_GATHER, 4, 0, 2, 6 * S * (K / 2) * 3 / 4},
               {CONTEXT_ULYSSES, 2, 0, 1, 4 * (H + K) * S / 2 / 2},
               {CONTEXT_ULYSSES, 4, 0, 1, 4 * S * H * 3 / 4 / 4 + 4 * S * HEAD * 3 / 4},
               {CONTEXT_ULYSSES, 8, 8, 1, 4 * S * H * 7 / 8 / 8 + 4 * S * HEAD * 7 / 8},
               {CONTEXT_ULYSSES, 4, 4, 2, 4 * S * (H / 2) * 3 / 4 / 4 + 4 * S * HEAD * 3 / 4},
               /* heads over 2, then keys of S / 2 tokens and one head over a ring of 2 */
               {CONTEXT_GATHER, 4, 2, 1, 4 * (H + K) * (S / 2) / 2 / 2 + 6 * S * (K / 2) / 2}};
    Ranks one;
    ModelBed m;
    (void)state;
    wide_layer(&one, &m, TOKENS, CONTEXT_GATHER, &(MeshSizes){0});
    const double flops = heavy_flops(&one);
    model_bed_close(&m);
    ranks_close(&one);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Ranks r;
        wide_layer(&r, &m, TOKENS, row[i].kind,
                   &(MeshSizes){.cp = row[i].cp, .cp_heads = row[i].heads, .tp = row[i].tp});
        if (context_sent(&r) != row[i].sent || fabs(heavy_flops(&r) - flops) > 1e-9 * flops)
            fail_msg("%s cp=%d cp_heads=%d tp=%d: %lld elements, not %lld; %g flops, not %g",
                     context_name(row[i].kind), row[i].cp, row[i].heads, row[i].tp,
                     (long long)context_sent(&r), (long long)row[i].sent, heavy_flops(&r), flops);
        ranks_close(&r);
        model_bed_close(&m);
    }
}

/* Ranks with uneven heads pack different messages, but begin transfers in one order. */
static void uneven_heads_agree(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 8; cp++) {
        ModelBed m;
        Ranks r;
        wide_layer(&r, &m, TOKENS, CONTEXT_ULYSSES, &(MeshSizes){.cp = cp});
        assert_true(ranks_agree(&r, "uneven heads") >= 8);
        ranks_close(&r);
        model_bed_close(&m);
    }
}

static size_t frame_bytes(const Program *p)
{
    return p->bytes[REGION_FRAME_I] + p->bytes[REGION_FRAME_W];
}

/* What a layer keeps for its backward phases falls as 1 / cp. Ulysses keeps the output of attention
 * twice: by heads for attention_dx, by tokens for the gradient of o_proj. */
static void frames_are_divided(void **state)
{
    static const struct {
        ContextKind kind;
        int cp;
    } row[] = {{CONTEXT_GATHER, 2}, {CONTEXT_GATHER, 4}, {CONTEXT_GATHER, 8}, {CONTEXT_ULYSSES, 2}};
    enum { MAX_FRAME_TENSORS = 32 }; /* each is aligned */
    ModelBed m;
    Ranks one;
    (void)state;
    wide_layer(&one, &m, 50 * TOKENS, CONTEXT_GATHER, &(MeshSizes){0});
    const size_t whole = frame_bytes(&one.program[0]);
    const size_t output = (size_t)50 * TOKENS * HEADS * HEAD * sizeof(float);
    model_bed_close(&m);
    ranks_close(&one);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Ranks r;
        wide_layer(&r, &m, 50 * TOKENS, row[i].kind, &(MeshSizes){.cp = row[i].cp});
        const size_t kept = whole + (row[i].kind == CONTEXT_ULYSSES ? output : 0);
        const size_t most = kept / (size_t)row[i].cp + MAX_FRAME_TENSORS * ARENA_ALIGN;
        for (int k = 0; k < r.n; k++)
            if (frame_bytes(&r.program[k]) > most)
                fail_msg("%s cp=%d: rank %d keeps %zu bytes of %zu", context_name(row[i].kind),
                         row[i].cp, k, frame_bytes(&r.program[k]), whole);
        ranks_close(&r);
        model_bed_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_contiguous),
        cmocka_unit_test(gaps_are_refused),
        cmocka_unit_test(sums_are_sliced),
        cmocka_unit_test(integers_are_packed),
        cmocka_unit_test(elements_and_flops),
        cmocka_unit_test(frames_are_divided),
        cmocka_unit_test(uneven_heads_agree),
        cmocka_unit_test(unpacks_precede_the_next_transfer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
