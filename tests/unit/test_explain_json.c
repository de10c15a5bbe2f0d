/* test_explain_json.c -- `sheaf explain --json` against the compiled job: every number is the
 * compiler's. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"
#include "state/save.h"

static double run_flops(const Job *job, bool recomputed)
{
    double sum = 0;
    for (int i = 0; i < job->linked.n; i++) {
        const LinkedAction *l = &job->linked.list[i];
        for (int k = l->program ? l->program->first[l->action.phase] : 0;
             l->program && k < l->program->first[l->action.phase + 1]; k++)
            if (l->program->instr[k].recomputed == recomputed) sum += l->program->instr[k].flops;
    }
    return sum;
}

static void compare_memory(const json_t *all, const LinkedProgram *lp, Arena *temp)
{
    static const char *const arena[N_ARENAS] = {"state", "step",    "work",
                                                "host",  "session", "kernels"};
    int64_t total;
    DO(saver_bytes(lp, lp->rank, SAVE_MEMORY_BUFFER, temp, &total));
    assert_int_equal(number(all, "memory.save_bytes"), total);
    for (int a = 0; a < N_ARENAS; a++) {
        char path[64];
        snprintf(path, sizeof path, "memory.%s.bytes", arena[a]);
        assert_int_equal(number(all, path), lp->bytes[a]);
        total += (int64_t)lp->bytes[a];
    }
    assert_int_equal(number(all, "memory.total_bytes"), total);
    assert_int_equal(number(all, "memory.work.live_bytes"), lp->live[ARENA_WORK]);
    assert_int_equal(number(all, "memory.work.peak_at.index"), lp->peak_at);
    assert_int_equal(number(all, "memory.state.weights") + number(all, "memory.state.moments"),
                     lp->bytes[ARENA_STATE]);
    assert_int_equal(number(all, "memory.step.gradients") + number(all, "memory.step.prepacked") +
                         number(all, "memory.step.inputs") + number(all, "memory.step.other"),
                     lp->bytes[ARENA_STEP]);
    for (int r = 0; r < N_OWN_REGIONS; r++) {
        if (r == REGION_HOST) continue;
        const json_t *by = at_path(all, "memory.work.peak_regions");
        assert_int_equal(number(by, region_name((Region)r)), lp->peak_region[r]);
    }
}

static void compare_program(const json_t *o, const Program *p)
{
    const json_t *list = at_path(o, "instructions"), *one, *tensor;
    size_t i;
    assert_string_equal(json_string_value(at_path(o, "kind")), p->kind);
    assert_int_equal(json_array_size(list), p->n_instr);
    json_array_foreach((json_t *)list, i, one)
    {
        const Instr *in = &p->instr[i];
        assert_string_equal(json_string_value(at_path(one, "op")), op_info(in->op)->name);
        assert_string_equal(json_string_value(at_path(one, "queue")), queue_name(in->queue));
        assert_string_equal(json_string_value(at_path(one, "phase")), phase_name(in->phase));
        assert_true((double)number(one, "flops") == in->flops);
        assert_int_equal(json_array_size(at_path(one, "out")), in->n_out);
    }
    json_array_foreach((json_t *)at_path(o, "tensors"), i, tensor)
    {
        const ProgTensor *t = &p->tensor[number(tensor, "id")];
        assert_string_equal(json_string_value(at_path(tensor, "name")), t->name);
        assert_string_equal(json_string_value(at_path(tensor, "scope")), scope_name(t->scope));
        assert_string_equal(json_string_value(at_path(tensor, "merged.region")),
                            region_name(t->at[MERGED].region));
        if (t->at[SPLIT].region < N_OWN_REGIONS)
            assert_int_equal(number(tensor, "split.offset"), t->at[SPLIT].offset);
    }
}

static void compare_job(const json_t *all, Compiled *c)
{
    const Job *job = &c->job;
    const Model *m = &job->model;
    char action[ACTION_TEXT_BYTES];
    compare_memory(all, &job->linked, &c->arena);
    assert_int_equal(number(all, "model.parameters"), model_param_count(m));
    assert_int_equal(json_array_size(at_path(all, "units")), m->n_units);
    for (int u = 0; u < m->n_units; u++)
        assert_int_equal(number(json_array_get(at_path(all, "units"), (size_t)u), "elements"),
                         m->unit[u].count);
    assert_int_equal(json_array_size(at_path(all, "programs")), m->n_kinds);
    for (int k = 0; k < m->n_kinds; k++)
        compare_program(json_array_get(at_path(all, "programs"), (size_t)k), &job->program[k]);
    assert_int_equal(json_array_size(at_path(all, "actions")), job->linked.n);
    for (int i = 0; i < job->linked.n; i++)
        assert_string_equal(json_string_value(at_path(
                                json_array_get(at_path(all, "actions"), (size_t)i), "action")),
                            action_text(&job->linked.list[i].action, 1, action));
}

static void json_equals_the_job(void **state)
{
    (void)state;
    static const char *const more[] = {NULL, "parallel.recompute=selective",
                                       "parallel.recompute=full", "parallel.recompute=attn.q",
                                       "parallel.offload=mlp.*,attn.out"};
    int64_t forward = 0;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        Compiled *c = compiled(more[i], JOB_STEP), *loss = compiled(more[i], JOB_LOSS);
        assert_int_equal(explain(1, "--json", more[i], NULL), 0);
        json_t *all = parsed();
        compare_job(all, c);
        const double fresh = run_flops(&c->job, false), second = run_flops(&c->job, true);
        assert_true((double)(number(all, "flops.forward") + number(all, "flops.backward")) ==
                    fresh);
        assert_true((double)number(all, "flops.recomputed") == second);
        assert_true((double)number(all, "flops.forward") == run_flops(&loss->job, false));
        assert_int_equal(second > 0,
                         i >= 1 && i <= 3); /* attn.q is a view: its GEMM is recomputed */
        if (i) assert_int_equal(number(all, "flops.forward"), forward);
        forward = number(all, "flops.forward");
        assert_int_equal(number(all, "memory.host.bytes") > 0, i == 4);
        assert_int_equal(number(all, "bytes.copied") > 0, i == 4);
        json_decref(all);
        done(c);
        done(loss);
    }
}

static const char *word(const json_t *o, const char *path)
{
    return json_string_value(at_path(o, path));
}

/* What auto took for cp, and what it compared. */
static void json_has_the_context(void **state)
{
    (void)state;
    Compiled *c = compiled("mesh.cp=2", JOB_STEP);
    assert_int_equal(explain(1, "--json", "mesh.cp=2", NULL), 0);
    json_t *all = parsed();
    assert_string_equal(word(all, "plan.context.kind"), context_name(c->job.context));
    assert_string_equal(word(all, "plan.context.tokens"), token_map_name(c->job.tokens));
    assert_true(json_is_true(at_path(all, "plan.context.chosen_by_auto")));
    assert_true(json_is_true(at_path(all, "plan.context.tokens_chosen_by_auto")));
    const ContextSearch *s = &c->job.search;
    assert_string_equal(word(all, "plan.context.excluded.double-ring"),
                        "one host has all its ranks");
    for (int i = 0; i < s->n; i++) {
        char path[64];
        snprintf(path, sizeof path, "plan.context.ms.%s", context_name(s->list[i].kind));
        if (!s->list[i].why_not)
            assert_true(json_real_value(at_path(all, path)) == 1e3 * s->list[i].seconds);
    }
    json_decref(all);
    done(c);
    assert_int_equal(explain(1, "--json", "mesh.cp=8", "parallel.tokens=striped", NULL), 0);
    all = parsed();
    assert_true(json_is_false(at_path(all, "plan.context.tokens_chosen_by_auto")));
    assert_string_equal(word(all, "plan.context.tokens"), "striped");
    assert_string_equal(word(all, "plan.context.excluded.ulysses"), "4 heads are left to 8 ranks");
    json_decref(all);
    assert_int_equal(explain(1, "--json", NULL), 0);
    all = parsed();
    assert_true(json_is_null(at_path(all, "plan.context")));
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_equals_the_job),
        cmocka_unit_test(json_has_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
