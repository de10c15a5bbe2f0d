/* test_explain_memory.c -- the memory rows of `sheaf explain` are the contents of the rank's
 * arenas, found by the addresses that linking assigned. */
#define _POSIX_C_SOURCE 200809L
#include "explain_cases.h"

enum { MAX_PLACES = 512 };

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

static const char *const keys[] = {"packs",  "homes",     "master",     "moments",
                                   "sums",   "home_sums", "tied_grads", "prepacked",
                                   "inputs", "losses",    "scalars"};
enum { N_ROW_KEYS = sizeof keys / sizeof *keys };
static bool found[N_ROW_KEYS]; /* in some case */

/* The bytes of a key extend to the next address. Empty places share an address, in any order. */
static void compare_places(const json_t *all, const char *arena, Places *p, size_t end)
{
    qsort(p->place, (size_t)p->n, sizeof *p->place, by_address);
    for (size_t k = 0; k < N_ROW_KEYS; k++) {
        size_t bytes = 0;
        for (int i = 0; i < p->n; i++)
            if (strcmp(p->place[i].key, keys[k]) == 0)
                bytes += (i + 1 < p->n ? p->place[i + 1].at : end) - p->place[i].at;
        if (bytes != row_bytes(all, arena, keys[k]))
            fail_msg("%s %s: %zu bytes by addresses, %zu printed", arena, keys[k], bytes,
                     row_bytes(all, arena, keys[k]));
        if (bytes) found[k] = true;
    }
    assert_int_equal(row_bytes(all, arena, NULL), end);
}

static void find_state(const LinkedProgram *lp, Places *p)
{
    for (int k = 0; k < lp->model->n_packs; k++) {
        const PackMemory *at = &lp->pack[k];
        if (at->whole != NO_BASE)
            note(p, at->whole, "packs");
        else
            note(p, at->weights, "homes");
        if (dtype_wide(lp->model->dtype) != lp->model->dtype) note(p, at->master, "master");
        for (int m = 0; m < lp->n_moments; m++) note(p, at->moments[m], "moments");
    }
}

static void find_step(const LinkedProgram *lp, Places *p)
{
    for (int k = 0; k < lp->model->n_packs; k++) {
        const PackMemory *at = &lp->pack[k];
        if (at->grad_sums != NO_BASE)
            note(p, at->grad_sums, "sums");
        else
            note(p, at->reduced_grads, "home_sums");
    }
    for (int u = 0; u < lp->model->n_units; u++) {
        const UnitMemory *at = &lp->unit[u];
        note(p, at->tied_grads, "tied_grads");
        for (int i = 0; i < programs_of_unit(&lp->programs, u)->n_prepacked; i++)
            note(p, at->prepacked[i], "prepacked");
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
    assert_int_equal(number(all, "memory.step.gradients") + number(all, "memory.step.prepacked") +
                         number(all, "memory.step.inputs") + number(all, "memory.step.other"),
                     lp->bytes[ARENA_STEP]);
}

static void memory_rows_match_addresses(void **state)
{
    (void)state;
    for_all_ranks(memory_of_rank);
    for (int k = 0; k < N_ROW_KEYS; k++)
        if (!found[k]) fail_msg("no case has %s", keys[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_rows_match_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
