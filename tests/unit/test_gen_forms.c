/* test_gen_forms.c -- every generator, for thousands of shapes: it passes the check, runs on any
 * transport, and its bubble and peaks equal the closed forms of its head comment. */
#include "support/test_arena.h"

#include <string.h>
#include "base/math.h"
#include "schedule/check/check.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/play.h"

/* F, I, W, B of every chunk and slice; sums of them are exact in binary. */
static const double costs[][N_PHASES] = {
    {1, 1, 1, 2}, {1, 1.25, 0.75, 2}, {3, 4.5, 2.25, 6.75}, {2, 1.5, 1.25, 2.75}};
enum { N_COSTS = sizeof costs / sizeof costs[0] };

/* P stages, m micros, v chunks, k slices, g the largest group; the times of one chunk and slice. */
typedef struct {
    int P, m, v, k, g;
    double F, I, W;
    bool equal; /* F = I = W */
} Shape;

static const double UNKNOWN = -1; /* outside the domain of the closed form */

static double form_1f1b(const Shape *x) { return (x->P - 1) * (x->F + x->I + x->W); }

static double form_interleaved(const Shape *x)
{
    const int short_of = max_int(x->P - x->m, 0);
    return (x->P - 1 + (x->v - 1) * short_of) * (x->F + x->I + x->W);
}

static double form_zbh1(const Shape *x)
{
    return (x->P - 1) * (x->F + x->I - x->W) + max_int(x->P - x->m, 0) * x->W;
}

static double form_izb(const Shape *x)
{
    return x->m < x->P ? UNKNOWN : (x->P - 1) * (x->F + x->I - x->W);
}

static double form_zero(const Shape *x) /* ZB-H2, ZB-V */
{
    return x->m < 2 * x->P - 1 || !x->equal ? UNKNOWN : (x->P - 1) * x->F;
}

static double form_dualpipev(const Shape *x)
{
    return x->m < 2 * x->P || !x->equal ? UNKNOWN : (x->P - 1) * x->F;
}

static int peak_all(const Shape *x, int r) { return (void)r, x->m * x->v * x->k; }
static int peak_1f1b(const Shape *x, int r) { return min_int(x->P - r, x->m); }
static int peak_seq(const Shape *x, int r) { return min_int(x->P - r - 1 + x->k, x->m * x->k); }
static int peak_zbh1(const Shape *x, int r) { return (void)r, min_int(x->P, x->m); }

static int peak_interleaved(const Shape *x, int r)
{
    return min_int(2 * (x->P - r - 1) + (x->v - 1) * x->g + 1, x->m * x->v);
}

static int peak_izb(const Shape *x, int r)
{
    return (void)r, min_int((x->v - 1) * x->g + x->P, x->m * x->v);
}

static int peak_zbh2(const Shape *x, int r) { return (void)r, min_int(2 * x->P - 1, x->m); }

static int peak_zbv(const Shape *x, int r)
{
    return x->m < 2 * x->P - 1 ? -1 : ((void)r, 2 * x->P);
}

static int peak_dualpipev(const Shape *x, int r)
{
    return x->m < 2 * x->P ? -1 : ((void)r, 2 * x->P + 1);
}

typedef struct {
    const char *name;
    double (*bubble)(const Shape *);
    int (*peak)(const Shape *, int stage);
    int max_chunks, max_slices; /* largest tried */
    bool no_span;               /* if the form holds, no stage waits in between */
} Form;

static const Form forms[] = {
    {"gpipe", form_1f1b, peak_all, 1, 3, false},
    {"1f1b", form_1f1b, peak_1f1b, 1, 1, false},
    {"interleaved", form_interleaved, peak_interleaved, 4, 1, false},
    {"bfs", form_interleaved, peak_all, 4, 1, false},
    {"zbh1", form_zbh1, peak_zbh1, 1, 1, false},
    {"zbh2", form_zero, peak_zbh2, 1, 1, true},
    {"izb", form_izb, peak_izb, 4, 1, false},
    {"zbv", form_zero, peak_zbv, 2, 1, true},
    {"dualpipev", form_dualpipev, peak_dualpipev, 2, 1, false},
    {"seq1f1b", form_1f1b, peak_seq, 1, 4, false},
    {"terapipe", form_1f1b, peak_all, 1, 4, false},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

static const GeneratorRow *row_of(const char *name)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        if (strcmp(row[i].name, name) == 0) return &row[i];
    fail_msg("no row %s", name);
    return NULL;
}

static const double *cost_table(Arena *a, int items, const double *cost)
{
    double *table;
    DO(ARENA_NEW(a, items * N_PHASES, &table));
    for (int i = 0; i < items * N_PHASES; i++) table[i] = cost[i % N_PHASES];
    return table;
}

static void check_form(const Form *form, const Pipeline *p, const Schedule *s, Arena *a)
{
    for (int c = 0; c < N_COSTS; c++) {
        const double *x = costs[c];
        const Shape shape = {p->stages, p->micros, p->chunks, p->slices, p->group,
                             x[0],      x[1],      x[2],      c == 0};
        Play play;
        DO(schedule_play(s, &(PlayCosts){.cost = cost_table(a, s->chunks, x)}, a, &play));
        const double bubble = form->bubble(&shape);
        if (bubble != UNKNOWN && play.bubble != bubble)
            fail_msg("%s P=%d v=%d m=%d k=%d g=%d costs %d: bubble %g, form %g", form->name,
                     p->stages, p->chunks, p->micros, p->slices, p->group, c, play.bubble, bubble);
        if (bubble != UNKNOWN && form->no_span) assert_true(play.span == 0);
        assert_true(play.makespan == play.bubble + play.busy[0]); /* all stages have equal work */
        assert_true(play.idle <= 1 && play.idle >= 0);
        assert_true(play.span <= play.bubble);
        for (int r = 0; r < p->stages; r++) {
            const int peak = form->peak(&shape, r);
            if (peak >= 0 && play.peak[r] != peak)
                fail_msg("%s P=%d v=%d m=%d k=%d g=%d: stage %d peak %d, form %d", form->name,
                         p->stages, p->chunks, p->micros, p->slices, p->group, r, play.peak[r],
                         peak);
        }
    }
}

static void each_shape(void **state, void (*check)(const Form *, const Pipeline *, Arena *),
                       int max_stages, int *cases)
{
    for (int i = 0; i < N_FORMS; i++) {
        const GeneratorRow *row = row_of(forms[i].name);
        for (int v = row->min_chunks; v <= forms[i].max_chunks; v++)
            for (int k = 1; k <= forms[i].max_slices; k++)
                for (int P = 1; P <= max_stages; P++)
                    for (int m = 1; m <= 2 * P + 4; m += 1 + (m > P + 2), ++*cases) {
                        const size_t mark = arena_mark(*state);
                        check(&forms[i], &(Pipeline){P, m, v, k, 0}, *state);
                        arena_rewind(*state, mark);
                    }
    }
}

static void check_closed(const Form *form, const Pipeline *p, Arena *a)
{
    Pipeline full = *p;
    Schedule s;
    DO(schedule_pipeline(row_of(form->name), &full));
    DO(schedule_generate(form->name, p, a, &s));
    DO(schedule_check(&s, a));
    assert_true(schedule_in_order(&s));
    assert_int_equal(s.chunks, p->stages * p->chunks);
    check_form(form, &full, &s, a);
}

static void bubbles_and_peaks_match_closed_forms(void **state)
{
    int cases = 0;
    each_shape(state, check_closed, 12, &cases);
    assert_true(cases > 3000);
}

/* Sends and receives: no transport can deadlock, and posted receives cost nothing. */
static void check_expanded(const Form *form, const Pipeline *p, Arena *a)
{
    Schedule s, units;
    Play before, after;
    DO(schedule_generate(form->name, p, a, &s));
    DO(schedule_expand(&s, EXPAND_STEP, a, &units));
    DO(schedule_check(&units, a));
    assert_true(schedule_in_order(&units));
    DO(schedule_play(&s, &(PlayCosts){0}, a, &before));
    for (PlayWait wait = PLAY_WAIT_AT_USE; wait <= PLAY_WAIT_BOTH; wait++) {
        DO(schedule_play(&units, &(PlayCosts){.wait = wait}, a, &after));
        if (wait == PLAY_WAIT_AT_USE) assert_true(after.makespan == before.makespan);
        for (int r = 0; r < s.stages; r++) assert_int_equal(after.peak[r], before.peak[r]);
    }
}

static void no_transport_hangs(void **state)
{
    int cases = 0;
    each_shape(state, check_expanded, 7, &cases);
    assert_true(cases > 1000);
}

/* Any accepted group keeps the bubble, at the cost of a higher peak. */
static void groups_keep_the_bubble(void **state)
{
    int accepted = 0, refused = 0;
    for (int i = 0; i < N_FORMS; i++)
        for (int P = 1; row_of(forms[i].name)->groups && P <= 6; P++)
            for (int m = 1; m <= 20; m++)
                for (int g = 1; g <= m + 1; g++) {
                    const size_t mark = arena_mark(*state);
                    const Pipeline p = {P, m, 3, 1, g};
                    Schedule s;
                    if (schedule_generate(forms[i].name, &p, *state, &s) == OK) {
                        Pipeline largest =
                            p; /* groups are as equal as possible, so the largest may be smaller */
                        const int rounds = (m + g - 1) / g;
                        largest.group = (m + rounds - 1) / rounds;
                        DO(schedule_check(&s, *state));
                        check_form(&forms[i], &largest, &s, *state);
                        accepted++;
                    } else {
                        assert_non_null(strstr(err_text(), "would have groups of "));
                        refused++;
                    }
                    arena_rewind(*state, mark);
                }
    assert_true(accepted > 1000 && refused > 100);
}

/* Generators without a form for few micro-batches: deleting surplus RUNs leaves a complete list. */
static void surplus_micro_batches_are_deleted(void **state)
{
    for (int P = 2; P <= 6; P++) {
        Schedule whole, few;
        DO(schedule_generate("zbv", &(Pipeline){.stages = P, .micros = 2 * P - 1}, *state, &whole));
        DO(schedule_generate("zbv", &(Pipeline){.stages = P, .micros = P}, *state, &few));
        for (int r = 0; r < P; r++) {
            int at = 0;
            assert_int_equal(few.n[r], 2 * P * 3);
            for (int i = 0; i < whole.n[r]; i++)
                if (whole.list[r][i].micro < P)
                    assert_memory_equal(&whole.list[r][i], &few.list[r][at++], sizeof(Action));
        }
    }
}

static void chunk_orders(void **state)
{
    (void)state;
    const int loop[] = {0, 1, 2, 0, 1, 2, 0, 1, 2}, v[] = {0, 1, 2, 2, 1, 0, 0, 1, 2};
    for (int chunk = 0; chunk < 9; chunk++) {
        assert_int_equal(pipeline_stage(CHUNKS_LOOP, 3, chunk), loop[chunk]);
        assert_int_equal(pipeline_stage(CHUNKS_V, 3, chunk), v[chunk]);
        assert_int_equal(pipeline_chunk(CHUNKS_LOOP, 3, loop[chunk], chunk / 3), chunk);
        assert_int_equal(pipeline_chunk(CHUNKS_V, 3, v[chunk], chunk / 3), chunk);
    }
}

static void defaults(void **state)
{
    const struct {
        const char *name;
        int chunks, slices, group;
    } row[N_FORMS] = {
        {"gpipe", 1, 1, 0},     {"1f1b", 1, 1, 0},    {"interleaved", 2, 1, 5}, {"bfs", 2, 1, 0},
        {"zbh1", 1, 1, 0},      {"zbh2", 1, 1, 0},    {"izb", 2, 1, 5},         {"zbv", 2, 1, 0},
        {"dualpipev", 2, 1, 0}, {"seq1f1b", 1, 2, 0}, {"terapipe", 1, 2, 0},
    };
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        Pipeline p = {.stages = 4, .micros = 9};
        DO(schedule_pipeline(row_of(row[i].name), &p));
        assert_int_equal(p.chunks, row[i].chunks);
        assert_int_equal(p.slices, row[i].slices);
        assert_int_equal(p.group, row[i].group); /* 9 micro-batches are 5 and 4 */
    }
    int n;
    schedule_generators(&n);
    assert_int_equal(n, N_FORMS); /* every generator has a form */
}

/* Forwards before a stage's first backward. */
static void warm_up_lengths(void **state)
{
    for (int P = 1; P <= 9; P++)
        for (int r = 0; r < P; r++) {
            const int after = P - 1 - r, m = 3 * P;
            const struct {
                const char *name;
                int forwards;
            } row[] = {
                {"gpipe", m},
                {"1f1b", after + 1},
                {"interleaved", 2 * after + P + 1},
                {"bfs", 2 * m},
                {"zbh1", after + 1},
                {"zbh2", 2 * after + 1},
                {"izb", after + P + 1},
                {"zbv", 2 * after + 1 + 2 * r + 1},
                {"dualpipev", 2 * after + 2 * (r + 1) + (r == P - 1)},
                {"seq1f1b", after + 2},
                {"terapipe", 2 * m},
            };
            for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
                Schedule s;
                int warm = 0;
                DO(schedule_generate(row[i].name, &(Pipeline){.stages = P, .micros = m}, *state,
                                     &s));
                while (s.list[r][warm].phase == PHASE_F) warm++;
                if (warm != row[i].forwards)
                    fail_msg("%s P=%d stage %d: %d forwards first, not %d", row[i].name, P, r, warm,
                             row[i].forwards);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_and_peaks_match_closed_forms),
        cmocka_unit_test(no_transport_hangs),
        cmocka_unit_test(groups_keep_the_bubble),
        cmocka_unit_test(surplus_micro_batches_are_deleted),
        cmocka_unit_test(chunk_orders),
        cmocka_unit_test(defaults),
        cmocka_unit_test(warm_up_lengths),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
