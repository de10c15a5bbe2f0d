/* test_ranks_experts.c -- a model with packs in two views, its experts sharded over ep, against one
 * rank.
 *
 * One rank computes the same step class by class: the micro-batches of the ranks with equal ep
 * coordinate, with the weights of their experts. The gradients of the classes are added, those of
 * experts side by side, and AdamW is applied here. */
#include "support/expect.h"

#include <math.h>

#include "base/philox.h"
#include "support/experts.h"
#include "support/world.h"

enum { DP = 4, EP = 2, MICROS = 2, STEPS = 4 };

static void widen_result(Model *m) { experts_widen(m, EP); }

/* ---- the reference: one rank, class by class ---- */

typedef struct {
    TestJob job[EP];
    const Model *model; /* with whole shapes */
    const int64_t *at;  /* [params + 1] */
    double *w, *m, *v, *g;
    double loss, norm;
} Reference;

/* The index in the whole parameter of element i of the part that class `of` has. */
static int64_t whole_index(const Param *p, int of, int64_t i)
{
    const int dim = experts_dim(p);
    if (dim < 0) return i;
    const int64_t columns = dim == 1 ? p->info.n[1] / EP : p->info.n[1];
    const int64_t row = i / columns + (dim == 0 ? of * p->info.n[0] / EP : 0);
    return row * p->info.n[1] + i % columns + (dim == 1 ? of * columns : 0);
}

/* Copies a part of every parameter between the arrays and the rank of a class. */
static void move_part(Reference *r, int of, ParamPart part, double *whole, bool out)
{
    for (int p = 0; p < r->model->n_params; p++) {
        const Tensor t = rank_param(&r->job[of].rank, p, part);
        for (int64_t i = 0; i < tensor_count(&t); i++) {
            double *cell = &whole[r->at[p] + whole_index(&r->model->param[p], of, i)];
            if (out)
                *cell += real_get(&t, i); /* experts have one class each, other gradients all */
            else
                real_set(&t, i, *cell);
        }
    }
}

static void update(Reference *r, const OptimSettings *o, double lr, int step, double factor)
{
    for (int p = 0; p < r->model->n_params; p++)
        for (int64_t i = r->at[p]; i < r->at[p + 1]; i++) {
            const double g = factor * r->g[i], decay = r->model->param[p].info.decay;
            r->m[i] = o->beta1 * r->m[i] + (1 - o->beta1) * g;
            r->v[i] = o->beta2 * r->v[i] + (1 - o->beta2) * g * g;
            const double m = r->m[i] / (1 - pow(o->beta1, step));
            const double v = r->v[i] / (1 - pow(o->beta2, step));
            r->w[i] -= lr * (m / (sqrt(v) + o->eps) + decay * o->weight_decay * r->w[i]);
        }
}

static void reference_step(Reference *r, const World *w, int step)
{
    const int64_t n = r->at[r->model->n_params];
    double live = 0, squares = 0;
    r->loss = 0;
    for (int64_t i = 0; i < n; i++) r->g[i] = 0;
    for (int of = 0; of < EP; of++) {
        const JobSettings *set = &r->job[of].job.settings;
        StepResult result;
        move_part(r, of, PART_WEIGHT, r->w, false);
        for (int m = 0; m < set->micros; m++) {
            const TestBatch b = test_job_batch(set, m * EP + of + 16 * step);
            rank_fill_batch(&r->job[of].rank, m, &b);
        }
        DO(rank_step(&r->job[of].rank, &(StepSettings){.step = step + 1}, &result));
        move_part(r, of, PART_GRAD, r->g, true);
        r->loss += result.loss_sum;
        live += (double)result.live_tokens;
    }
    for (int64_t i = 0; i < n; i++) squares += r->g[i] * r->g[i];
    r->loss /= live;
    r->norm = sqrt(squares) / live;
    const double clip = w->set.optim.clip;
    update(r, &w->set.optim, w->lr, step + 1, (r->norm > clip ? clip / r->norm : 1) / live);
}

static double off(double a, double b) { return fabs(a - b) / fmax(1.0, fabs(b)); }

/* Runs the steps on both and compares loss, norm, gradients, weights and moments. */
static void compare(const World *w, const WorldResult *many)
{
    static Reference r;
    r = (Reference){.model = many->model, .at = many->at};
    Arena a;
    DO(arena_open(&a, "reference", ARENA_PLENTY));
    double **array[] = {&r.w, &r.m, &r.v, &r.g};
    for (int i = 0; i < 4; i++) DO(ARENA_NEW(&a, many->elements, array[i]));
    for (int of = 0; of < EP; of++) {
        JobSettings set = w->set;
        set.kind = JOB_GRADIENTS;
        set.parallel = (ParallelSettings){0};
        set.micros = DP * MICROS / EP;
        DO(test_job_open(&r.job[of], &set, 1));
    }
    for (int p = 0; p < r.model->n_params; p++) {
        const Random random = random_named(5, r.model->param[p].name);
        const double about = r.model->param[p].info.init == INIT_ONES ? 1.0 : 0.0;
        for (int64_t i = r.at[p]; i < r.at[p + 1]; i++)
            r.w[i] = about + 0.4 * random_normal(&random, (uint64_t)(i - r.at[p]));
    }
    double most = 0;
    for (int s = 0; s < w->steps; s++) {
        reference_step(&r, w, s);
        most = fmax(most, off(many->loss[s], r.loss));
        most = fmax(most, off(many->norm[s], r.norm));
    }
    for (int64_t i = 0; i < many->elements; i++) {
        most = fmax(most, off(many->part[PART_GRAD][i], r.g[i]));
        most = fmax(most, off(many->part[PART_MASTER][i], r.w[i]));
        most = fmax(most, off(many->part[PART_MOMENT1][i], r.m[i]));
        most = fmax(most, off(many->part[PART_MOMENT2][i], r.v[i]));
    }
    if (!(most <= 1e-10)) fail_msg("zero=%d: off by %g", w->set.parallel.zero, most);
    for (int of = 0; of < EP; of++) test_job_close(&r.job[of]);
    arena_close(&a);
}

static World world_of_experts(const ModelConfig *config, int zero)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.config = config;
    w.set.micros = MICROS;
    w.set.optim.clip = 0.4;
    w.set.parallel.mesh = (MeshSizes){.dp_shard = DP, .ep = EP};
    w.set.parallel.zero = zero;
    w.steps = STEPS;
    w.change = experts_shard;
    w.reshape = widen_result;
    return w;
}

static void experts_equal_one_rank(void **state)
{
    (void)state;
    const ModelConfig config = experts_config(5);
    for (int zero = 0; zero < 4; zero++) {
        const World w = world_of_experts(&config, zero);
        WorldResult many;
        if (world_run_job(&w, &many) != OK) fail_msg("zero=%d: %s", zero, err_text());
        compare(&w, &many);
        world_result_close(&many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_equal_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
