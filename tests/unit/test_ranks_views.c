/* test_ranks_views.c -- units whose parameters are laid out in the expert view, against one rank.
 * No program shards experts yet, so the layers have their replicate layout in that view: its data
 * axis edp is dp x cp. Gradients must be summed over it, and the norm must count the units of both
 * views once. */
#include "support/expect.h"

#include "support/world.h"

/* Links the job again, with the parameters of every second unit in the expert view. */
static Err use_expert_view(Job *job, Arena *arena)
{
    Layout *use;
    TRY(ARENA_NEW(arena, job->model.n_params, &use));
    for (int p = 0; p < job->model.n_packs; p++) {
        Pack *pack = &job->model.pack[p];
        pack->view = pack->unit % 2 ? VIEW_EXPERT : VIEW_DENSE;
        for (int i = 0; i < pack->n_params; i++) {
            job->model.param[pack->param[i]].info.view = (uint8_t)pack->view;
            use[pack->param[i]] = layout_replicate(pack->view);
        }
    }
    return job_link(job, &job->programs, use, arena);
}

static void compare(const char *name, const World *one, const World *many)
{
    WorldResult a, b;
    DO(world_run_job(one, &a));
    if (world_run_job(many, &b) != OK) fail_msg("%s: %s", name, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("%s: off by %g", name, off);
    world_result_close(&a);
    world_result_close(&b);
}

static void two_views(void **state)
{
    (void)state;
    for (int variant = 0; variant < 12; variant++) {
        World one = world_of(test_job_settings("llama", JOB_STEP)), many = one;
        const int cp = 1 + variant / 4;
        one.set.micros = 4;
        many.set.micros = 2;
        one.set.optim.clip = many.set.optim.clip = 0.4;
        many.set.parallel.mesh = (MeshSizes){.dp_shard = 2, .cp = cp};
        many.set.parallel.zero = variant % 4;
        many.change = use_expert_view;
        compare("layers in the expert view", &one, &many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_views)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
