/* test_ranks_experts.c -- layers whose packs are in two views, sharded over experts, against one
 * rank.
 *
 *     layer 0, 2   dense    y = x + W a, a = rmsnorm(x)
 *     layer 1, 3   expert   y = x + V gelu(U a)           norm in the dense pack, U and V in the
 *                                                         pack of experts: cut over ep
 *
 * Routing is fixed: the tokens of a rank go to the experts of the rank's part of ep, of which its
 * program has the sum. One rank computes the same step class by class: micro-batches of the ranks
 * with equal ep coordinate, with the weights of their experts. The gradients of the classes are
 * added, those of experts side by side, and AdamW is applied here. */
#include "support/expect.h"

#include <math.h>

#include "base/philox.h"
#include "compile/strategy.h"
#include "support/world.h"

enum { DP = 4, EP = 2, MICROS = 2, STEPS = 4 };

static Value normed(Graph *g, const ModelBuilder *b, Value x)
{
    return rmsnorm(g, x, vector(g, "norm.weight", b->config->width, INIT_ONES),
                   b->config->norm_eps);
}

static Value expert2(Graph *g, const char *name, int64_t out, int64_t in)
{
    const Value w = weight2(g, name, out, in, 0.1);
    g->param[g->n_params - 1].view = VIEW_EXPERT;
    return w;
}

static void embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, b->rows),
                            weight2(g, "embed.weight", c->vocab, c->width, 0.1)));
}

static void dense(Graph *g, const ModelBuilder *b)
{
    const int64_t width = b->config->width;
    const Value x = stream_in(g, b->rows, width), a = normed(g, b, x);
    stream_out(g, add(g, x, linear(g, a, weight2(g, "w.weight", width, width, 0.1), NO_VALUE)));
}

/* U comes before the norm's weight: packs are not in the order of parameters. */
static void expert(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width);
    const Value up = expert2(g, "up.weight", c->ff_width, c->width), a = normed(g, b, x);
    const Value down = expert2(g, "down.weight", c->width, c->ff_width);
    stream_out(g, add(g, x, linear(g, gelu(g, linear(g, a, up, NO_VALUE)), down, NO_VALUE)));
}

static void head(Graph *g, const ModelBuilder *b)
{
    const Value x = head_in(g, b);
    head_out(g, b, normed(g, b, x),
             weight2(g, "lm_head.weight", b->config->vocab, b->config->width, 0.1));
}

static int kind_of_layer(const ModelConfig *c, int layer)
{
    (void)c;
    return 1 + layer % 2;
}

static const UnitKind kinds[] = {
    {"embed", embed}, {"dense", dense}, {"expert", expert}, {"head", head}};
static const FamilyBuilder family = {kinds, 4, kind_of_layer, "layers.%d."};

/* The model as a rank's program sees it: the width of the experts is that of one part of ep. */
static ModelConfig config_of(int64_t ff_width)
{
    ModelConfig c = *test_model("llama");
    c.name = "experts";
    c.builder = &family;
    c.n_layers = 4;
    c.ff_width = ff_width;
    return c;
}

/* The dim of a parameter that is cut over ep; -1: none. */
static int expert_dim(const Param *p)
{
    if (p->info.view != VIEW_EXPERT) return -1;
    return strstr(p->name, "up.weight") ? 0 : 1;
}

/* Gives the parameters of experts their whole shapes: `ep` times that of a program. */
static void widen(Model *m, int ep)
{
    for (int p = 0; p < m->n_packs; p++)
        for (int i = 0; m->pack[p].view == VIEW_EXPERT && i < m->pack[p].n_params; i++) {
            Param *q = &m->param[m->pack[p].param[i]];
            m->pack[p].count += (ep - 1) * q->count;
            m->unit[m->pack[p].unit].count += (ep - 1) * q->count;
            q->count *= ep;
            q->info.n[expert_dim(q)] *= ep;
        }
}

static void widen_result(Model *m) { widen(m, EP); }

/* Links the job again, with experts cut over ep. */
static Err shard_experts(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const int ep = set->parallel.mesh.ep ? set->parallel.mesh.ep : 1;
    const unsigned axis = mesh_axes(&job->mesh, VIEW_EXPERT, "ep");
    Layout *use;
    widen(&job->model, ep);
    TRY(strategy_use(&job->strategy, &job->model, &job->mesh, arena, &use));
    for (int p = 0; p < job->model.n_params && ep > 1; p++)
        if (expert_dim(&job->model.param[p]) >= 0)
            use[p] = layout_cut(use[p], expert_dim(&job->model.param[p]), axis, 1);
    const LinkInput in = {.model = &job->model,
                          .programs = &job->programs,
                          .n_moments = job->linked.n_moments,
                          .mesh = &job->mesh,
                          .rank = set->parallel.rank,
                          .use = use,
                          .block = set->optim.block,
                          .switches = job->switches,
                          .slice_at = job->slices.cut,
                          .note_freed = set->note_freed};
    return schedule_link(&job->units, 0, &in, arena, &job->linked);
}

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
    const int dim = expert_dim(p);
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
    w.change = shard_experts;
    w.reshape = widen_result;
    return w;
}

static void experts_equal_one_rank(void **state)
{
    (void)state;
    const ModelConfig config = config_of(5);
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
