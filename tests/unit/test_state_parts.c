/* The boxes of all ranks: the owned ones tile every tensor, the held ones are the contents of the
 * homes; the program of any rank gives the same result. */
#include "support/states.h"

#include <stdlib.h>

/* Number of owners of each element, by tensor. */
typedef struct {
    StateTensors tensors;
    int **owners, **holders;
} Cover;

static void cover_open(Cover *c, const StateWorld *w, Arena *a)
{
    DO(state_tensors(&w->job[0].linked, a, &c->tensors));
    DO(ARENA_NEW(a, c->tensors.n, &c->owners));
    DO(ARENA_NEW(a, c->tensors.n, &c->holders));
    for (int i = 0; i < c->tensors.n; i++) {
        DO(ARENA_NEW(a, shape_count(&c->tensors.tensor[i].shape), &c->owners[i]));
        DO(ARENA_NEW(a, shape_count(&c->tensors.tensor[i].shape), &c->holders[i]));
    }
}

/* Called for each element of a part: its index in the tensor, and in the home. */
typedef void VisitElement(void *context, const StatePart *p, int64_t global, int64_t at);

static void each_element(const StateTensor *t, const StatePart *p, VisitElement *see, void *context)
{
    int64_t index[MAX_DIMS] = {0};
    for (int64_t left = box_count(&p->box); left > 0; left--) {
        int64_t global = 0, at = p->at;
        for (int d = 0; d < p->box.ndim; d++) {
            global = global * t->shape.n[d] + p->box.lo[d] + index[d];
            at += index[d] * p->stride[d];
        }
        see(context, p, global, at);
        for (int d = p->box.ndim - 1; d >= 0 && ++index[d] == p->box.hi[d] - p->box.lo[d]; d--)
            index[d] = 0;
    }
}

static void count(void *counts, const StatePart *p, int64_t global, int64_t at)
{
    int **of = counts;
    (void)at;
    of[p->tensor][global]++;
}

/* The home of a pack on one rank: the parameter and element of each position, from its pieces. */
typedef struct {
    const char *where;
    const LinkedProgram *lp;
    int64_t **global; /* [units][home]: -1 once it was visited as often as there are roles */
    int **param, **seen;
} Homes;

static void homes_open(Homes *h, const Rank *r, Arena *a)
{
    const LinkedProgram *lp = h->lp;
    const int units = lp->model->n_packs;
    DO(ARENA_NEW(a, units, &h->global));
    DO(ARENA_NEW(a, units, &h->param));
    DO(ARENA_NEW(a, units, &h->seen));
    for (int u = 0; u < units; u++) {
        const int64_t n = lp->pack[u].mine.shard.hi - lp->pack[u].mine.shard.lo;
        DO(ARENA_NEW(a, n, &h->global[u]));
        DO(ARENA_NEW(a, n, &h->param[u]));
        DO(ARENA_NEW(a, n, &h->seen[u]));
        for (int i = 0; i < rank_pieces(r, u); i++) {
            const RankPiece p = rank_piece(r, u, i);
            for (int64_t k = 0; k < p.hi - p.lo; k++) {
                h->global[u][p.at + k] = rank_piece_global(&p, k);
                h->param[u][p.at + k] = p.param;
            }
        }
    }
}

static void check_home(void *homes, const StatePart *p, int64_t global, int64_t at)
{
    Homes *h = homes;
    const int roles = 1 + h->lp->n_moments;
    if (h->global[p->pack][at] != global || h->param[p->pack][at] != p->tensor / roles)
        fail_msg("%s: element %lld of the home of pack %d is %lld of parameter %d, not %lld of "
                 "tensor %d",
                 h->where, (long long)at, p->pack, (long long)h->global[p->pack][at],
                 h->param[p->pack][at], (long long)global, p->tensor);
    h->seen[p->pack][at]++;
}

static void all_seen(const Homes *h)
{
    for (int u = 0; u < h->lp->model->n_packs; u++) {
        const Span shard = h->lp->pack[u].mine.shard;
        for (int64_t i = 0; i < shard.hi - shard.lo; i++)
            if (h->seen[u][i] != 1 + h->lp->n_moments)
                fail_msg("%s: element %lld of pack %d is in %d parts", h->where, (long long)i, u,
                         h->seen[u][i]);
    }
}

static void in_order(const char *where, const StateParts *p)
{
    for (int64_t i = 1; i < p->n; i++) {
        const StatePart *a = &p->part[i - 1], *b = &p->part[i];
        int d = 0;
        while (d < a->box.ndim - 1 && a->box.lo[d] == b->box.lo[d]) d++;
        if (a->tensor > b->tensor || (a->tensor == b->tensor && a->box.lo[d] >= b->box.lo[d]))
            fail_msg("%s: part %lld is out of order", where, (long long)i);
    }
}

/* Checks the boxes of rank `of`, computed from the program of every rank. */
static void check_rank(const StateWorld *w, int of, Cover *c, Arena *a)
{
    StateParts owned, held, other;
    Rank rank;
    const RankSettings set = {.program = &w->job[of].linked, .device = NULL};
    rank = (Rank){.settings = set};
    Homes homes = {.where = w->words, .lp = &w->job[of].linked};
    homes_open(&homes, &rank, a);
    DO(state_parts(homes.lp, of, true, a, &owned));
    DO(state_parts(homes.lp, of, false, a, &held));
    in_order(w->words, &owned);
    in_order(w->words, &held);
    for (int64_t i = 0; i < owned.n; i++)
        each_element(&c->tensors.tensor[owned.part[i].tensor], &owned.part[i], count, c->owners);
    for (int64_t i = 0; i < held.n; i++) {
        const StateTensor *t = &c->tensors.tensor[held.part[i].tensor];
        each_element(t, &held.part[i], check_home, &homes);
        each_element(t, &held.part[i], count, c->holders);
    }
    all_seen(&homes);
    for (int program = 0; program < w->ranks; program++) {
        DO(state_parts(&w->job[program].linked, of, false, a, &other));
        assert_int_equal(other.n, held.n);
        assert_memory_equal(other.part, held.part, (size_t)held.n * sizeof *held.part);
    }
}

static void check_layout(const char *words, OptimKind kind)
{
    StateWorld w;
    Cover c;
    state_world_open_as(&w, &(StateSpec){.words = words, .dtype = F32, .kind = kind});
    cover_open(&c, &w, &w.arena);
    for (int r = 0; r < w.ranks; r++) check_rank(&w, r, &c, &w.arena);
    for (int i = 0; i < c.tensors.n; i++) {
        const StateTensor *t = &c.tensors.tensor[i];
        assert_int_equal(t->dtype, F32);
        for (int64_t k = 0; k < shape_count(&t->shape); k++)
            if (c.owners[i][k] != 1 || c.holders[i][k] < 1)
                fail_msg("%s: element %lld of %s of %s has %d owners, %d holders", words,
                         (long long)k, state_role_name(t->role), t->name, c.owners[i][k],
                         c.holders[i][k]);
    }
    state_world_close(&w);
}

static void owned_boxes_tile(void **state)
{
    (void)state;
    int n = 0;
    for (; state_layouts[n]; n++) check_layout(state_layouts[n], OPTIM_ADAMW);
    assert_true(n >= 12);
    check_layout("dp=2 tp=3 zero=1", OPTIM_SGD);
}

/* The tied table is one tensor, also if two stages have it. */
static void tensors_are_the_models(void **state)
{
    (void)state;
    StateWorld one, two;
    StateTensors a, b;
    state_world_open(&one, "");
    state_world_open(&two, "pp=2 dp=2 zero=1");
    DO(state_tensors(&one.job[0].linked, &one.arena, &a));
    for (int r = 0; r < two.ranks; r++) {
        DO(state_tensors(&two.job[r].linked, &two.arena, &b));
        assert_int_equal(a.n, b.n);
        for (int i = 0; i < a.n; i++) {
            assert_string_equal(a.tensor[i].name, b.tensor[i].name);
            assert_int_equal(a.tensor[i].role, b.tensor[i].role);
            assert_int_equal(a.tensor[i].role, i % 3);
            assert_memory_equal(&a.tensor[i].shape, &b.tensor[i].shape, sizeof(Shape));
        }
    }
    assert_true(two.job[0].model.n_params > one.job[0].model.n_params); /* a copy */
    assert_int_equal(a.n, 3 * one.job[0].model.n_params);
    state_world_close(&two);
    state_world_close(&one);
}

static void roles_have_names(void **state)
{
    (void)state;
    for (int i = 0; i < N_STATE_ROLES; i++)
        assert_int_equal(state_role_of(state_role_name((StateRole)i)), i);
    assert_int_equal(state_role_of("moment3"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(owned_boxes_tile),
                                       cmocka_unit_test(tensors_are_the_models),
                                       cmocka_unit_test(roles_have_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
