/* test_explain_ranks.c -- `sheaf explain` of ranks of meshes against their linked programs:
 * coordinates, sent bytes of transfers, steps of actions, parameters in packs. */
#define _POSIX_C_SOURCE 200809L
#include "explain_cases.h"
#include "schedule/traffic.h"

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

/* Sums the printed rows with the same kind, axes and scalar flag. */
static TrafficRow printed_traffic(const json_t *all, const Mesh *m, const TrafficRow *like)
{
    const json_t *row;
    TrafficRow sum = {.kind = like->kind};
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
    Traffic traffic;
    size_t total = 0;
    DO(linked_traffic(&c->job.linked, &traffic));
    for (int i = 0; i < traffic.n; i++) {
        const TrafficRow printed_row = printed_traffic(all, &c->job.mesh, &traffic.row[i]);
        assert_int_equal(printed_row.transfers, traffic.row[i].transfers);
        assert_int_equal(printed_row.bytes, traffic.row[i].bytes);
        assert_int_equal(printed_row.sent_bytes, traffic.row[i].sent_bytes);
        total += traffic.row[i].sent_bytes;
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
        const LinkedAction *l = &lp->list[i];
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
        const LinkedAction *l = &lp->list[n];
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

/* ---- parameters ---- */

static int64_t extent(const json_t *shape)
{
    const json_t *n;
    int64_t count = 1;
    size_t i;
    json_array_foreach((json_t *)shape, i, n) count *= json_integer_value(n);
    return count;
}

static int64_t length(const json_t *s)
{
    return json_integer_value(json_array_get(s, 1)) - json_integer_value(json_array_get(s, 0));
}

/* Removes axes of size 1. */
static unsigned wide_axes(const Mesh *m, unsigned axes)
{
    for (int i = 0; i < m->view[VIEW_DENSE].n_axes; i++)
        if (m->view[VIEW_DENSE].size[i] == 1) axes &= ~(1u << i);
    return axes;
}

static bool has_route(const json_t *param, const char *what, const Mesh *m, unsigned axes)
{
    const json_t *route;
    size_t i;
    json_array_foreach((json_t *)at_path(param, "gradient"), i, route)
    {
        if (strcmp(json_string_value(at_path(route, "what")), what) == 0 &&
            axes_of(at_path(route, "axes"), m) == wide_axes(m, axes))
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
        const PackMemory *at = &lp->pack[lp->model->unit[unit].first_pack];
        const unsigned rest = mesh_axes(m, VIEW_DENSE, "dp") & ~at->home.shard;
        json_array_foreach((json_t *)at_path(program, "parameters"), i, param)
        {
            assert_int_equal(extent(at_path(param, "use_shape")), length(at_path(param, "pack")));
            if (strcmp(json_string_value(at_path(param, "in_pack_of")),
                       lp->model->unit[unit].name) != 0)
                continue;
            pack += length(at_path(param, "pack"));
            home += length(at_path(param, "home"));
            assert_int_equal(has_route(param, "scatter", m, at->home.shard), at->group.n > 1);
            if (length(at_path(param, "home")) > 0)
                assert_int_equal(has_route(param, "data", m, rest),
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

/* The rank's flops, and the formula: an even share of the whole model on the tokens of all
 * ranks. */
static void flops_of_rank(const json_t *all, const Compiled *c)
{
    const LinkedProgram *lp = &c->job.linked;
    const ModelConfig *m = &c->model;
    double flops = 0;
    for (int i = 0; i < lp->n; i++)
        for (int k = lp->list[i].program ? lp->list[i].program->first[lp->list[i].action.phase] : 0;
             lp->list[i].program && k < lp->list[i].program->first[lp->list[i].action.phase + 1];
             k++)
            flops += lp->list[i].program->instr[k].flops;
    assert_true((double)number(all, "flops.all") == flops);
    const int dp = mesh_parts(&c->job.mesh, VIEW_DENSE, mesh_axes(&c->job.mesh, VIEW_DENSE, "dp"));
    const int64_t tokens = lp->model->rows * lp->micros * dp;
    const int64_t each = 6 * model_param_count(lp->model) +
                         12 * m->n_layers * m->n_heads * m->head_size * c->config.data_seq_len;
    assert_int_equal(number(all, "flops.formula"), tokens * each / c->job.mesh.world);
}

static void compare_rank(const json_t *all, const Compiled *c)
{
    coordinates_of_rank(all, c);
    transfers_of_rank(all, c);
    actions_of_rank(all, c);
    params_of_rank(all, c);
    flops_of_rank(all, c);
}

static void every_rank_matches_its_linked_program(void **state)
{
    (void)state;
    for_all_ranks(compare_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_matches_its_linked_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
