/* test_explain_ranks.c -- `sheaf explain` of ranks of meshes against their linked programs: memory by
 * the addresses that linking gave out, transfers by what is sent, lists as they are run. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"
#include "schedule/sent.h"

enum { MAX_SET = 16, MAX_PLACES = 512 };

typedef struct {
    const char *set[MAX_SET];
} Case;

/* Sizes all different; packs of several blocks, and of less than one a rank. */
#define MODEL                                                                                      \
    "model.name=llama-tiny", "model.num_hidden_layers=3", "data.seq_len=24", "batch.global=7",     \
        "batch.micro=2", "numerics.block=512"
static const Case cases[] = {
    {{MODEL}},
    {{MODEL, "mesh.dp=2", "mesh.tp=2", "parallel.zero=3", "parallel.sequence=true"}},
    {{MODEL, "mesh.dp=3", "parallel.zero=1", "precision.compute=bf16"}},
    {{MODEL, "mesh.dp=2", "parallel.zero=2", "model.tie_word_embeddings=true"}},
    {{MODEL, "mesh.dp_replicate=2", "mesh.dp_shard=2", "parallel.zero=3", "precision.compute=bf16",
      "model.tie_word_embeddings=true", "parallel.schedule=gpipe"}},
    {{MODEL, "mesh.tp=3", "parallel.regather=false", "optim.kind=sgd"}},
    {{MODEL, "mesh.dp_replicate=2", "mesh.dp_shard=1", "mesh.tp=2", "parallel.reduce=each"}},
    {{MODEL, "mesh.dp=5", "parallel.zero=3", "numerics.block=65536", "parallel.offload=mlp.*"}},
    {{MODEL, "numerics.fold=2", "model.tie_word_embeddings=true", "precision.compute=f64"}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static int words_of(const Case *c)
{
    int n = 0;
    while (n < MAX_SET && c->set[n]) n++;
    return n;
}

/* A later word of the same key wins here as in a table of cases: the earlier is left out. */
static int settle(const Case *c, const char *out[MAX_SET])
{
    int n = 0;
    for (int i = 0; i < words_of(c); i++) {
        bool again = false;
        const size_t key = strcspn(c->set[i], "=") + 1;
        for (int k = i + 1; k < words_of(c); k++)
            again = again || strncmp(c->set[i], c->set[k], key) == 0;
        if (!again) out[n++] = c->set[i];
    }
    return n;
}

static json_t *explained(const Case *c, int rank)
{
    const char *set[MAX_SET];
    char text[16];
    const int n = settle(c, set);
    snprintf(text, sizeof text, "%d", rank);
    if (explain_list(1, set, n, "--json", "--rank", text, NULL) != 0) fail_msg("%s", err_text());
    return parsed();
}

static Compiled *compiled_case(const Case *c, int rank)
{
    const char *set[MAX_SET];
    const int n = settle(c, set);
    return compiled_rank(set, n, rank, JOB_STEP);
}

/* ---- memory: what lies from one address to the next ---- */

typedef struct {
    size_t at;
    const char *key;
} Found;

typedef struct {
    Found place[MAX_PLACES];
    int n;
} Places;

static void note(Places *p, size_t at, const char *key)
{
    if (at != NO_BASE) p->place[p->n++] = (Found){at, key};
    assert_true(p->n < MAX_PLACES);
}

static int by_address(const void *a, const void *b)
{
    const Found *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x < y ? -1 : x > y;
}

static size_t row_bytes(const json_t *all, const char *arena, const char *key)
{
    const json_t *row;
    size_t i, bytes = 0;
    json_array_foreach((json_t *)at_path(all, "memory.rows"), i, row)
    {
        if (strcmp(json_string_value(at_path(row, "arena")), arena) == 0 &&
            (!key || strcmp(json_string_value(at_path(row, "key")), key) == 0))
            bytes += (size_t)number(row, "bytes");
    }
    return bytes;
}

/* Each key's bytes: to the next address. Places of no bytes share one; order does not matter. */
static void compare_places(const json_t *all, const char *arena, Places *p, size_t end)
{
    static const char *const keys[] = {"packs",     "homes",      "master", "moments", "sums",
                                       "home_sums", "guest_sums", "inputs", "losses",  "scalars"};
    qsort(p->place, (size_t)p->n, sizeof *p->place, by_address);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        size_t bytes = 0;
        for (int i = 0; i < p->n; i++)
            if (p->place[i].key == keys[k] || strcmp(p->place[i].key, keys[k]) == 0)
                bytes += (i + 1 < p->n ? p->place[i + 1].at : end) - p->place[i].at;
        if (bytes != row_bytes(all, arena, keys[k]))
            fail_msg("%s %s: %zu bytes by addresses, %zu said", arena, keys[k], bytes,
                     row_bytes(all, arena, keys[k]));
    }
    assert_int_equal(row_bytes(all, arena, NULL), end);
}

static void find_state(const LinkedProgram *lp, Places *p)
{
    for (int u = 0; u < lp->model->n_units; u++) {
        const UnitPlace *at = &lp->unit[u];
        if (at->pack != NO_BASE)
            note(p, at->pack, "packs");
        else
            note(p, at->weights, "homes");
        if (dtype_wide(lp->model->dtype) != lp->model->dtype) note(p, at->master, "master");
        for (int m = 0; m < lp->n_moments; m++) note(p, at->moments[m], "moments");
    }
}

static void find_step(const LinkedProgram *lp, Places *p)
{
    for (int u = 0; u < lp->model->n_units; u++) {
        const UnitPlace *at = &lp->unit[u];
        if (at->grads != NO_BASE)
            note(p, at->grads, "sums");
        else
            note(p, at->sums, "home_sums");
        note(p, at->guests, "guest_sums");
    }
    for (int i = 0; i < N_INPUTS; i++) note(p, lp->input[i], "inputs");
    note(p, lp->loss, "losses");
    for (int i = 0; i < N_SCALARS; i++) note(p, lp->scalar[i].at, "scalars");
}

static void memory_of_rank(const json_t *all, const Compiled *c)
{
    const LinkedProgram *lp = &c->job.linked;
    Places state = {.n = 0}, step = {.n = 0};
    find_state(lp, &state);
    compare_places(all, "state", &state, lp->bytes[ARENA_STATE]);
    find_step(lp, &step);
    compare_places(all, "step", &step, lp->bytes[ARENA_STEP]);
    assert_int_equal(row_bytes(all, "work", NULL), lp->live[ARENA_WORK]);
    assert_int_equal(row_bytes(all, "work", "gathered"), lp->peak_packs);
    assert_int_equal(row_bytes(all, "work", "gradients"), lp->peak_grads);
    assert_int_equal(row_bytes(all, "host", NULL), lp->bytes[ARENA_HOST]);
    assert_int_equal(number(all, "memory.state.weights") + number(all, "memory.state.master") +
                         number(all, "memory.state.moments"),
                     lp->bytes[ARENA_STATE]);
    assert_int_equal(number(all, "memory.step.gradients") + number(all, "memory.step.inputs") +
                         number(all, "memory.step.other"),
                     lp->bytes[ARENA_STEP]);
}

/* ---- transfers ---- */

static unsigned axes_of(const json_t *list, const Mesh *m)
{
    const json_t *name;
    unsigned axes = 0;
    size_t i;
    json_array_foreach((json_t *)list, i, name) axes |=
        mesh_axes(m, VIEW_DENSE, json_string_value(name));
    return axes;
}

/* What is said of one kind, axes, and scalars or not. */
static SentRow said_sent(const json_t *all, const Mesh *m, const SentRow *like)
{
    const json_t *row;
    SentRow sum = {.kind = like->kind};
    size_t i;
    json_array_foreach((json_t *)at_path(all, "transfers.rows"), i, row)
    {
        const bool scalar = strcmp(json_string_value(at_path(row, "purpose")), "scalar") == 0;
        if (scalar != like->scalar || axes_of(at_path(row, "axes"), m) != like->axes ||
            strcmp(json_string_value(at_path(row, "kind")), comm_kind_name(like->kind)) != 0)
            continue;
        sum.transfers += number(row, "transfers");
        sum.bytes += (size_t)number(row, "bytes");
        sum.sent_bytes += (size_t)number(row, "sent_bytes");
    }
    return sum;
}

static void transfers_of_rank(const json_t *all, const Compiled *c)
{
    Sent sent;
    size_t total = 0;
    DO(linked_sent(&c->job.linked, &sent));
    for (int i = 0; i < sent.n; i++) {
        const SentRow said_row = said_sent(all, &c->job.mesh, &sent.row[i]);
        assert_int_equal(said_row.transfers, sent.row[i].transfers);
        assert_int_equal(said_row.bytes, sent.row[i].bytes);
        assert_int_equal(said_row.sent_bytes, sent.row[i].sent_bytes);
        total += sent.row[i].sent_bytes;
    }
    assert_int_equal(number(all, "transfers.sent_bytes"), total);
    assert_int_equal(number(all, "bytes.sent"), total);
    assert_int_equal(json_array_size(at_path(all, "transfers.rows")) > 0, c->job.mesh.world > 1);
}

/* ---- actions, with their steps ---- */

static void actions_of_rank(const json_t *all, const Compiled *c)
{
    const LinkedProgram *lp = &c->job.linked;
    const json_t *o;
    size_t i, k, sent = 0, programs = 0;
    json_array_foreach((json_t *)at_path(all, "actions"), i, o)
    {
        const Linked *l = &lp->list[i];
        if (l->action.kind != A_GATHER && l->action.kind != A_REDUCE) continue;
        const json_t *step;
        assert_int_equal(json_array_size(at_path(o, "steps")), l->n_steps);
        assert_int_equal(number(o, "waited_before"), l->end);
        json_array_foreach((json_t *)at_path(o, "steps"), k, step)
        {
            assert_string_equal(json_string_value(at_path(step, "what")), l->step[k].what);
            assert_int_equal(number(step, "to.offset"), l->step[k].t.to.offset);
            if (l->step[k].kind == STEP_TRANSFER)
                sent += (size_t)number(step, "transfer.sent_bytes");
        }
    }
    const json_t *row;
    json_array_foreach((json_t *)at_path(all, "transfers.rows"), i, row)
    {
        const char *purpose = json_string_value(at_path(row, "purpose"));
        if (strcmp(purpose, "program") == 0)
            programs += (size_t)number(row, "sent_bytes");
        else if (strcmp(purpose, "scalar") != 0)
            sent -= (size_t)number(row, "sent_bytes");
    }
    assert_int_equal(sent, 0);
    for (int n = 0; n < lp->n; n++) { /* programs, by their instructions */
        const Linked *l = &lp->list[n];
        if (!l->program) continue;
        const json_t *p =
            json_array_get(at_path(all, "programs"), (size_t)lp->model->unit[l->action.unit].kind);
        for (int x = l->program->first[l->action.phase]; x < l->program->first[l->action.phase + 1];
             x++)
            if (op_transfers(l->program->instr[x].op))
                programs -= (size_t)number(json_array_get(at_path(p, "instructions"), (size_t)x),
                                           "transfer.sent_bytes");
    }
    assert_int_equal(programs, 0);
}

/* ---- parameters: what ranks have, together ---- */

static int64_t extent(const json_t *shape)
{
    const json_t *n;
    int64_t count = 1;
    size_t i;
    json_array_foreach((json_t *)shape, i, n) count *= json_integer_value(n);
    return count;
}

static int64_t stretch(const json_t *s)
{
    return json_integer_value(json_array_get(s, 1)) - json_integer_value(json_array_get(s, 0));
}

/* Without those of one rank, along which nobody differs. */
static unsigned wide_axes(const Mesh *m, unsigned axes)
{
    for (int i = 0; i < m->view[VIEW_DENSE].n_axes; i++)
        if (m->view[VIEW_DENSE].size[i] == 1) axes &= ~(1u << i);
    return axes;
}

static bool has_way(const json_t *param, const char *what, const Mesh *m, unsigned axes)
{
    const json_t *way;
    size_t i;
    json_array_foreach((json_t *)at_path(param, "gradient"), i, way)
    {
        if (strcmp(json_string_value(at_path(way, "what")), what) == 0 &&
            axes_of(at_path(way, "axes"), m) == wide_axes(m, axes))
            return true;
    }
    return false;
}

static void params_of_rank(const json_t *all, const Compiled *c)
{
    const Mesh *m = &c->job.mesh;
    const LinkedProgram *lp = &c->job.linked;
    const json_t *program, *param;
    size_t k, i;
    json_array_foreach((json_t *)at_path(all, "programs"), k, program)
    {
        int unit = 0;
        int64_t pack = 0, home = 0;
        while (lp->model->unit[unit].kind != (int)k) unit++;
        const UnitPlace *at = &lp->unit[unit];
        const unsigned rest = mesh_axes(m, VIEW_DENSE, "dp") & ~at->home.shard;
        json_array_foreach((json_t *)at_path(program, "parameters"), i, param)
        {
            assert_int_equal(extent(at_path(param, "use_shape")), stretch(at_path(param, "pack")));
            if (strcmp(json_string_value(at_path(param, "in_pack_of")),
                       lp->model->unit[unit].name) != 0)
                continue;
            pack += stretch(at_path(param, "pack"));
            home += stretch(at_path(param, "home"));
            assert_int_equal(has_way(param, "scatter", m, at->home.shard), at->group.n > 1);
            if (stretch(at_path(param, "home")) > 0)
                assert_int_equal(has_way(param, "data", m, rest),
                                 mesh_parts(m, VIEW_DENSE, rest) > 1);
        }
        assert_int_equal(pack, at->mine.pack_count);
        assert_int_equal(home, at->mine.shard.hi - at->mine.shard.lo);
    }
}

static void coordinates_of_rank(const json_t *all, const Compiled *c)
{
    const View *v = &c->job.mesh.view[VIEW_DENSE];
    int coord[MAX_AXES];
    mesh_coords(&c->job.mesh, VIEW_DENSE, c->job.linked.rank, coord);
    assert_int_equal(number(all, "rank"), c->job.linked.rank);
    assert_int_equal(number(all, "ranks"), c->job.mesh.world);
    for (int i = 0; i < v->n_axes; i++)
        assert_int_equal(number(at_path(all, "coordinates"), v->name[i]), coord[i]);
}

static void every_rank_is_explained_as_it_is_linked(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int rank = 0, ranks = 1; rank < ranks; rank++) {
            Compiled *c = compiled_case(&cases[i], rank);
            json_t *all = explained(&cases[i], rank);
            ranks = c->job.mesh.world;
            coordinates_of_rank(all, c);
            memory_of_rank(all, c);
            transfers_of_rank(all, c);
            actions_of_rank(all, c);
            params_of_rank(all, c);
            json_decref(all);
            done(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_is_explained_as_it_is_linked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
