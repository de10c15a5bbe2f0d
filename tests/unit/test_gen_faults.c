/* test_gen_faults.c -- faults seeded into generated lists, over chunks and over units with sends:
 * each is found, with the right reason. A shape that cannot have a fault is skipped, and the test
 * counts how often each fault was seeded. */
#include "support/test_arena.h"

#include <string.h>
#include "base/philox.h"
#include "schedule/check/check.h"
#include "schedule/evict.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"

typedef struct {
    Schedule *s;
    Random random;
    uint64_t draw;
    int stage, at; /* the chosen action */
} Seed;

static int below(Seed *x, int n) { return (int)(random_bits(&x->random, x->draw++) % (unsigned)n); }

typedef struct {
    ActionKind kind;
    unsigned phases; /* bits */
    bool (*also)(const Schedule *s, const Action *a);
} Wanted;

static bool is_later_slice(const Schedule *s, const Action *a) { return (void)s, a->slice > 0; }

/* The chunk before is on the same stage. */
static bool is_own_later(const Schedule *s, const Action *a)
{
    return a->unit > 0 && s->stage_of[a->unit - 1] == s->stage_of[a->unit];
}

static bool is_wanted(const Wanted *w, const Schedule *s, const Action *a)
{
    return a->kind == w->kind && (w->phases >> a->phase & 1) && (!w->also || w->also(s, a));
}

/* Picks a random action that matches; false if there is none. */
static bool pick(Seed *x, const Wanted *wanted)
{
    int found = 0;
    for (int r = 0; r < x->s->stages; r++)
        for (int i = 0; i < x->s->n[r]; i++) {
            if (!is_wanted(wanted, x->s, &x->s->list[r][i]) || below(x, ++found) > 0) continue;
            x->stage = r;
            x->at = i;
        }
    return found > 0;
}

static Action *picked(Seed *x) { return &x->s->list[x->stage][x->at]; }

static void delete_at(Seed *x)
{
    const int after = --x->s->n[x->stage] - x->at;
    memmove(picked(x), picked(x) + 1, (size_t)after * sizeof(Action));
}

static void move_to(Seed *x, int to)
{
    const Action a = *picked(x);
    delete_at(x);
    Action *list = x->s->list[x->stage];
    memmove(list + to + 1, list + to, (size_t)(x->s->n[x->stage]++ - to) * sizeof(Action));
    list[to] = a;
}

/* The position of that action of the same (unit, micro, slice) in the chosen stage's list, or
 * -1. */
static int find(const Seed *x, Action a, ActionKind kind, Phase phase)
{
    for (int i = 0; i < x->s->n[x->stage]; i++) {
        const Action *b = &x->s->list[x->stage][i];
        if (b->kind == kind && b->phase == phase && b->unit == a.unit && b->micro == a.micro &&
            b->slice == a.slice)
            return i;
    }
    return -1;
}

enum {
    F = 1 << PHASE_F,
    I = 1 << PHASE_I,
    W = 1 << PHASE_W,
    B = 1 << PHASE_B,
    ANY = F | I | W | B
};

static const Wanted any_f = {A_RUN, F, NULL}, any_i = {A_RUN, I, NULL}, any_w = {A_RUN, W, NULL},
                    any_b = {A_RUN, B, NULL}, any_back = {A_RUN, B | I, NULL},
                    any_run = {A_RUN, ANY, NULL}, any_send = {A_SEND, ANY, NULL},
                    any_recv = {A_RECV, ANY, NULL}, any_update = {A_UPDATE, ANY, NULL},
                    any_evict = {A_EVICT, ANY, NULL}, any_fetch = {A_FETCH, ANY, NULL},
                    later_slice = {A_RUN, F, is_later_slice}, own_later = {A_RUN, F, is_own_later};

static bool delete_if(Seed *x, const Wanted *wanted)
{
    if (!pick(x, wanted)) return false;
    delete_at(x);
    return true;
}

static bool no_f(Seed *x) { return delete_if(x, &any_f); }
static bool no_b(Seed *x) { return delete_if(x, &any_b); }
static bool no_i(Seed *x) { return delete_if(x, &any_i); }
static bool no_w(Seed *x) { return delete_if(x, &any_w); }
static bool no_send(Seed *x) { return delete_if(x, &any_send); }
static bool no_recv(Seed *x) { return delete_if(x, &any_recv); }
static bool no_fetch(Seed *x) { return delete_if(x, &any_fetch); }

static bool twice(Seed *x)
{
    if (!pick(x, &any_run)) return false;
    const Action a = *picked(x);
    if (x->at + 1 == x->s->n[x->stage]) return false;
    x->s->list[x->stage][x->at + 1] = a; /* replacing another, too */
    return true;
}

static bool b_and_split(Seed *x) /* B in addition to I and W */
{
    if (!pick(x, &any_i)) return false;
    const int w = find(x, *picked(x), A_RUN, PHASE_W);
    x->s->list[x->stage][w].phase = PHASE_B;
    return true;
}

static bool back_first(Seed *x)
{
    if (!pick(x, &any_back)) return false;
    move_to(x, find(x, *picked(x), A_RUN, PHASE_F));
    return true;
}

static bool w_first(Seed *x)
{
    if (!pick(x, &any_w)) return false;
    move_to(x, find(x, *picked(x), A_RUN, PHASE_I));
    return true;
}

static bool slice_first(Seed *x)
{
    if (!pick(x, &later_slice)) return false;
    Action before = *picked(x);
    before.slice--;
    move_to(x, find(x, before, A_RUN, PHASE_F));
    return true;
}

/* A stage's own chunks in the wrong order: no other stage is involved. */
static bool chunk_first(Seed *x)
{
    if (!pick(x, &own_later)) return false;
    Action before = *picked(x);
    before.unit--;
    move_to(x, find(x, before, A_RUN, PHASE_F));
    return true;
}

static bool elsewhere(Seed *x)
{
    if (x->s->stages == 1 || !pick(x, &any_run)) return false;
    Action *a = picked(x);
    a->unit = (int16_t)(a->unit + (a->unit + 1 < x->s->chunks ? 1 : -1));
    return x->s->stage_of[a->unit] != x->stage;
}

static bool no_such_micro(Seed *x)
{
    if (!pick(x, &any_run)) return false;
    picked(x)->micro = (int16_t)x->s->micros;
    return true;
}

static bool wrong_reader(Seed *x)
{
    if (x->s->stages < 3 || !pick(x, &any_send)) return false;
    Action *a = picked(x);
    const int right = a->peer;
    for (int peer = 0; peer < x->s->stages; peer++)
        if (peer != right && peer != x->stage) a->peer = (int16_t)peer;
    return true;
}

static bool sent_early(Seed *x)
{
    if (!pick(x, &any_send)) return false;
    move_to(x, find(x, *picked(x), A_RUN, picked(x)->phase));
    return true;
}

static bool received_late(Seed *x)
{
    if (!pick(x, &any_recv)) return false;
    Action *a = picked(x), reader = *a;
    reader.unit = (int16_t)(a->phase == PHASE_F ? a->unit + 1 : a->unit - 1);
    int use = find(x, reader, A_RUN, a->phase);
    if (use < 0) use = find(x, reader, A_RUN, a->phase == PHASE_B ? PHASE_I : PHASE_B);
    move_to(x, use);
    return true;
}

/* Swaps two receives from one stage if nothing between them reads either. */
static bool crossed(Seed *x)
{
    for (int r = 0; r < x->s->stages; r++)
        for (int i = 0; i + 1 < x->s->n[r]; i++) {
            Action *a = &x->s->list[r][i];
            if (a[0].kind != A_RECV || a[1].kind != A_RECV || a[0].peer != a[1].peer) continue;
            const Action first = a[0];
            a[0] = a[1];
            a[1] = first;
            return true;
        }
    return false;
}

static bool updated_early(Seed *x)
{
    if (!pick(x, &any_update)) return false;
    move_to(x, 0);
    return true;
}

static bool evicted_early(Seed *x)
{
    if (!pick(x, &any_evict)) return false;
    move_to(x, find(x, *picked(x), A_RUN, PHASE_F));
    return true;
}

static const struct {
    const char *name;
    bool (*fault)(Seed *);
    const char *reason;
    enum { CHUNKS, UNITS, EVICTED } in;
} faults[] = {
    {"no F", no_f, "is missing: each item runs F once", CHUNKS},
    {"no B", no_b, "is missing: each item runs B once, or I and W", CHUNKS},
    {"no I", no_i, "is missing: I and W come together", CHUNKS},
    {"no W", no_w, "is missing: I and W come together", CHUNKS},
    {"twice", twice, "runs twice", CHUNKS},
    {"B and its split", b_and_split, "runs in addition to B", CHUNKS},
    {"backward first", back_first, "comes before its F", CHUNKS},
    {"W first", w_first, "comes before its I", CHUNKS},
    {"slice first", slice_first, "comes before F of slice", CHUNKS},
    {"chunk first", chunk_first, "deadlock", CHUNKS},
    {"elsewhere", elsewhere, "is held by stage", CHUNKS},
    {"no such micro-batch", no_such_micro, "micro-batch", CHUNKS},
    {"no send", no_send, "is missing: stage", UNITS},
    {"no recv", no_recv, "is missing: it is sent", UNITS},
    {"wrong reader", wrong_reader, "the reader is on stage", UNITS},
    {"sent early", sent_early, "sent before it is made", UNITS},
    {"received late", received_late, "received after it is read", UNITS},
    {"crossed", crossed, "before the value received just before", UNITS},
    {"updated early", updated_early, "RUNs of it that come after", UNITS},
    {"evicted early", evicted_early, "there is no frame before F", EVICTED},
    {"never fetched", no_fetch, "its frame was evicted and not fetched", EVICTED},
};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

static Schedule make(Arena *a, const char *name, const Pipeline *p, int in)
{
    Schedule s;
    DO(schedule_generate(name, p, a, &s));
    if (in == EVICTED) DO(schedule_evict(&s, 2, a, &s));
    if (in == UNITS) DO(schedule_expand(&s, EXPAND_STEP, a, &s));
    DO(schedule_check(&s, a));
    return s;
}

static void each_fault_is_found(void **state)
{
    int n, tried[N_FAULTS] = {0};
    const GeneratorRow *row = schedule_generators(&n);
    for (int f = 0; f < N_FAULTS; f++)
        for (int i = 0; i < n; i++)
            for (int trial = 0; trial < 20; trial++) {
                const size_t mark = arena_mark(*state);
                const Pipeline p = {.stages = 1 + trial % 5, .micros = 2 + trial % 7};
                Schedule s = make(*state, row[i].name, &p, faults[f].in);
                Seed seed = {.s = &s, .random = random_named((uint64_t)trial, faults[f].name)};
                if (faults[f].fault(&seed)) {
                    tried[f]++;
                    if (schedule_check(&s, *state) != ERR_CHECK)
                        fail_msg("%s in %s, trial %d, passed", faults[f].name, row[i].name, trial);
                    if (!strstr(err_text(), faults[f].reason))
                        fail_msg("%s in %s\n wanted: %s\n got: %s", faults[f].name, row[i].name,
                                 faults[f].reason, err_text());
                }
                arena_rewind(*state, mark);
            }
    for (int f = 0; f < N_FAULTS; f++)
        if (tried[f] < 10) fail_msg("%s: tried %d times only", faults[f].name, tried[f]);
    assert_true(N_FAULTS >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_fault_is_found)};
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
