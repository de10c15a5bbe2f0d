/* test_kernels_exchange.c -- rows that ranks send to the experts of other ranks, and back. Ranks
 * are arrays here, and the transfers between them are loops.
 *
 * Identity experts with gates 1/K return the input to the bit, under every workload. The rows of an
 * expert are in the order of ranks and tokens. Rows never leave their rooms, over 1,000 random
 * routings; too many rows are refused, and then nothing is written. With rounds they are not: every
 * row travels in one of them, in a room of its size. */
#include "kernel_test.h"

#include <math.h>

#include "base/err.h"
#include "device/exchange.h"

enum { MAX_RANKS = 8, MAX_K = 8, MAX_T = 13, D = 5, MAX_E = 16 };

/* Ranks of one exchange: E experts in ep parts, each on etp ranks. */
typedef struct {
    int ep, etp, experts, k;
    int tokens[MAX_RANKS];
    int64_t room;
    Attr attr;
    Arena arena;
    Tensor x[MAX_RANKS], expert[MAX_RANKS], gate[MAX_RANKS], at[MAX_RANKS], offsets[MAX_RANKS];
    Tensor to[MAX_RANKS], sent[MAX_RANKS], back[MAX_RANKS], all;
} Exchange;

static Bench bench;

static int draw(int n) { return (int)((bench_random(&bench) + 1) / 2 * n) % n; }

static Tensor make(Exchange *x, DType dtype, int64_t rows, int64_t columns)
{
    Tensor t = {.dtype = dtype, .ndim = 2, .n = {rows, columns}, .stride = {columns, 1}};
    const size_t bytes = (size_t)(rows * columns + 1) * dtype_bytes(dtype);
    assert_int_equal(arena_push(&x->arena, bytes, &t.data), OK);
    memset(t.data, 0xff, bytes);
    return t;
}

static Tensor make_list(Exchange *x, int64_t n)
{
    Tensor t = make(x, I32, 1, n);
    return (Tensor){.data = t.data, .dtype = I32, .ndim = 1, .n = {n}, .stride = {1}};
}

typedef enum { BALANCED, HOT_EXPERT, HOT_RANK, ZERO_LOAD, BURST, RANDOM_LOAD, N_LOADS } Load;

/* The k different experts of a token. */
static void choose(const Exchange *x, Load load, int rank, int t, int *expert)
{
    const int each = x->experts / x->ep;
    int first = t * x->k;
    if (load == HOT_EXPERT) first = 3;
    if (load == HOT_RANK) first = each * (x->ep - 1);
    if (load == ZERO_LOAD) first = t % 2; /* the last experts have no rows, if k is small */
    if (load == BURST) first = rank == 0 ? 0 : t * x->k;
    if (load == RANDOM_LOAD) first = draw(x->experts);
    for (int k = 0; k < x->k; k++) expert[k] = (first + k) % x->experts;
}

static void open_exchange(Exchange *x, int ep, int etp, int k, DType dtype, Load load)
{
    const int ranks = ep * etp;
    arena_rewind(&x->arena, 0);
    x->ep = ep, x->etp = etp, x->k = k;
    x->experts = ep * (1 + draw(3));
    while (x->experts < k) x->experts += ep;
    for (int r = 0; r < ranks; r++) {
        x->tokens[r] = draw(4) ? 1 + draw(MAX_T - 1) : 0;
        const int n = x->tokens[r];
        x->x[r] = make(x, dtype, n, D);
        x->expert[r] = make(x, I32, n, k);
        x->gate[r] = make(x, F64, n, k);
        x->at[r] = make(x, I32, n, k);
        x->to[r] = make(x, I32, n, k);
        x->back[r] = make(x, dtype, n, D);
        x->offsets[r] = make_list(x, x->experts + 1);
        fill(&bench, &x->x[r], 1);
        for (int t = 0; t < n; t++) {
            int expert[MAX_K];
            choose(x, load, r, t, expert);
            for (int i = 0; i < k; i++) put(&x->expert[r], t * k + i, expert[i]);
            for (int i = 0; i < k; i++) put(&x->gate[r], t * k + i, 1.0 / k);
        }
        run(KERNEL_assign_rows,
            &(Call){.in = {x->expert[r]}, .n_in = 1, .out = {x->at[r], x->offsets[r]}, .n_out = 2});
    }
    x->all = make(x, I32, ranks, x->experts + 1);
    for (int r = 0; r < ranks; r++)
        for (int e = 0; e <= x->experts; e++)
            put(&x->all, r * (x->experts + 1) + e, get(&x->offsets[r], e));
}

/* The most rows that a rank sends to one part. */
static int64_t need(const Exchange *x)
{
    int64_t most = 0;
    for (int r = 0; r < x->ep * x->etp; r++)
        for (int p = 0; p < x->ep; p++) {
            const int each = x->experts / x->ep;
            const int64_t n =
                (int64_t)(get(&x->offsets[r], (p + 1) * each) - get(&x->offsets[r], p * each));
            if (n > most) most = n;
        }
    return most;
}

static void set_room(Exchange *x, int64_t room)
{
    x->room = room;
    x->attr = (Attr){0};
    x->attr.exchange.ep = x->ep;
    x->attr.exchange.etp = x->etp;
    x->attr.exchange.room = room;
}

static Err send_rows(Exchange *x, int r)
{
    return device_ref.kernel[KERNEL_send_rows](&(Call){.in = {x->at[r], x->offsets[r]},
                                                       .n_in = 2,
                                                       .out = {x->to[r]},
                                                       .n_out = 1,
                                                       .attr = x->attr});
}

static void copy_rooms(const Tensor *from, int64_t i, const Tensor *to, int64_t k, int64_t room)
{
    const size_t bytes = (size_t)(room * D) * dtype_bytes(from->dtype);
    memcpy((char *)to->data + (size_t)k * bytes, (const char *)from->data + (size_t)i * bytes,
           bytes);
}

/* The rows of one expert come by rank, then by token. */
static void expect_order(const Exchange *x, int part, const Tensor *rows, const Tensor *offsets)
{
    const int each = x->experts / x->ep;
    int64_t row = 0;
    for (int e = 0; e < each; e++) {
        assert_int_equal((int)get(offsets, e), (int)row);
        for (int r = 0; r < x->ep * x->etp; r++)
            for (int i = 0; i < x->tokens[r] * x->k; i++) {
                if ((int)get(&x->expert[r], i) != part * each + e) continue;
                for (int d = 0; d < D; d++)
                    assert_true(get(rows, row * D + d) == get(&x->x[r], i / x->k * D + d));
                row++;
            }
    }
    assert_int_equal((int)get(offsets, each), (int)row);
}

/* Part i's rank j: collects, checks, and spreads. The ranks of a part add up what they give back;
 * here only the first one gives anything. */
static void run_part(Exchange *x, int i, int j, Tensor *returned)
{
    const int ep = x->ep, ranks = ep * x->etp;
    const DType dtype = x->x[0].dtype;
    const int64_t rooms = ranks * x->room;
    const Tensor got = make(x, dtype, rooms, D), rows = make(x, dtype, rooms, D);
    const Tensor offsets = make_list(x, x->experts / ep + 1);
    for (int s = 0; s < ranks; s++)
        copy_rooms(&x->sent[s], i, &got, s % x->etp * ep + s / x->etp, x->room);
    x->attr.exchange.part = i;
    Call call = {.in = {x->all}, .n_in = 1, .out = {offsets}, .n_out = 1, .attr = x->attr};
    run(KERNEL_sum_offsets, &call);
    call.in[0] = got, call.in[1] = x->all, call.n_in = 2, call.out[0] = rows,
    call.team = bench.team;
    run(KERNEL_collect_rows, &call);
    expect_order(x, i, &rows, &offsets);
    call.in[0] = rows, call.out[0] = make(x, dtype, rooms, D);
    run(KERNEL_spread_rows, &call);
    for (int s = 0; s < ranks && j == 0; s++)
        copy_rooms(&call.out[0], s % x->etp * ep + s / x->etp, &returned[s], i, x->room);
}

static void there_and_back(Exchange *x)
{
    const int ranks = x->ep * x->etp;
    Tensor returned[MAX_RANKS];
    for (int r = 0; r < ranks; r++) {
        x->sent[r] = make(x, x->x[r].dtype, x->ep * x->room, D);
        returned[r] = make(x, x->x[r].dtype, x->ep * x->room, D);
        assert_int_equal(send_rows(x, r), OK);
        run(KERNEL_permute,
            &(Call){.in = {x->x[r], x->to[r]}, .n_in = 2, .out = {x->sent[r]}, .n_out = 1});
    }
    for (int i = 0; i < x->ep; i++)
        for (int j = 0; j < x->etp; j++) run_part(x, i, j, returned);
    for (int r = 0; r < ranks; r++) {
        run(KERNEL_unpermute, &(Call){.in = {x->to[r], returned[r], x->gate[r]},
                                      .n_in = 3,
                                      .out = {x->back[r]},
                                      .n_out = 1});
        for (int i = 0; i < x->tokens[r] * D; i++)
            if (get(&x->back[r], i) != get(&x->x[r], i))
                fail_msg("ep=%d etp=%d k=%d: rank %d, element %d is %g, not %g", x->ep, x->etp,
                         x->k, r, i, get(&x->back[r], i), get(&x->x[r], i));
    }
}

static void identity_experts_return_the_input(void **state)
{
    static const int mesh[][2] = {{1, 1}, {2, 1}, {4, 1}, {8, 1}, {3, 1},
                                  {1, 2}, {2, 2}, {2, 3}, {4, 2}, {1, 5}};
    static Exchange x;
    (void)state;
    assert_int_equal(arena_open(&x.arena, "exchange", (size_t)1 << 26), OK);
    for (size_t m = 0; m < sizeof mesh / sizeof *mesh; m++)
        for (int k = 1; k <= MAX_K; k *= 2)
            for (Load load = BALANCED; load < N_LOADS; load++) {
                open_exchange(&x, mesh[m][0], mesh[m][1], k, m % 2 ? F32 : F64, load);
                set_room(&x, need(&x) + (load == BURST));
                there_and_back(&x);
            }
    arena_close(&x.arena);
}

/* The room is drawn too. Rows of one part stay within its room, each row has a place of its own,
 * and where a part's room is too small the kernel says so and how much is missing. */
static void rooms_are_never_exceeded(void **state)
{
    static Exchange x;
    int refused = 0;
    (void)state;
    assert_int_equal(arena_open(&x.arena, "exchange", (size_t)1 << 26), OK);
    for (int c = 0; c < 1000; c++) {
        open_exchange(&x, 1 + draw(4), 1 + draw(2), 1 + draw(MAX_K), F32, RANDOM_LOAD);
        set_room(&x, 1 + draw((int)need(&x) + 4));
        for (int r = 0; r < x.ep * x.etp; r++) {
            const int choices = x.tokens[r] * x.k, each = x.experts / x.ep;
            bool used[MAX_RANKS * (MAX_T * MAX_K + 8)] = {false}, fits = true;
            for (int p = 0; p < x.ep; p++)
                fits = fits && get(&x.offsets[r], (p + 1) * each) - get(&x.offsets[r], p * each) <=
                                   (double)x.room;
            const Err err = send_rows(&x, r);
            assert_int_equal(err == OK, fits);
            refused += !fits;
            if (!fits) assert_non_null(strstr(err_text(), "parallel.expert_rows"));
            for (int i = 0; i < choices; i++) {
                const int to = (int)get(&x.to[r], i), part = (int)get(&x.expert[r], i) / each;
                if (!fits) assert_int_equal(to, -1); /* not written */
                if (!fits) continue;
                assert_in_range(to, part * x.room, (part + 1) * x.room - 1);
                assert_false(used[to]);
                used[to] = true;
            }
        }
    }
    assert_in_range(refused, 100, 3000);
    arena_close(&x.arena);
}

/* ---- rounds ---- */

/* One round of all ranks' tokens to all parts and back: expert e multiplies its rows by 2 + e.
 * Returns the rows that travelled. */
static int64_t run_round(Exchange *x, int32_t round, const Tensor *places)
{
    const int ep = x->ep, ranks = ep * x->etp, each = x->experts / ep;
    const int64_t rooms = ranks * x->room;
    Tensor returned[MAX_RANKS];
    int64_t rows_of_all = 0;
    x->attr.exchange.round = round;
    for (int r = 0; r < ranks; r++) {
        x->sent[r] = make(x, x->x[r].dtype, ep * x->room, D);
        returned[r] = make(x, x->x[r].dtype, ep * x->room, D);
        assert_int_equal(send_rows(x, r), OK);
        run(KERNEL_permute,
            &(Call){.in = {x->x[r], x->to[r]}, .n_in = 2, .out = {x->sent[r]}, .n_out = 1});
    }
    for (int i = 0; i < ep; i++) {
        const Tensor got = make(x, x->x[0].dtype, rooms, D);
        const Tensor rows = make(x, x->x[0].dtype, rooms, D);
        const Tensor back = make(x, x->x[0].dtype, rooms, D), offsets = make_list(x, each + 1);
        for (int s = 0; s < ranks; s++)
            copy_rooms(&x->sent[s], i, &got, s % x->etp * ep + s / x->etp, x->room);
        x->attr.exchange.part = i;
        Call call = {.in = {x->all}, .n_in = 1, .out = {offsets}, .n_out = 1, .attr = x->attr};
        run(KERNEL_sum_offsets, &call);
        call.in[0] = got, call.in[1] = x->all, call.n_in = 2, call.out[0] = rows,
        call.team = bench.team;
        run(KERNEL_collect_rows, &call);
        const int64_t n = (int64_t)get(&offsets, each);
        assert_in_range(n, 0, rooms);
        rows_of_all += n;
        for (int e = 0; e < each; e++)
            for (int64_t k = (int64_t)get(&offsets, e) * D; k < (int64_t)get(&offsets, e + 1) * D;
                 k++)
                put(&rows, k, get(&rows, k) * (2 + i * each + e));
        call.in[0] = rows, call.out[0] = back;
        run(KERNEL_spread_rows, &call);
        for (int s = 0; s < ranks; s++)
            copy_rooms(&back, s % x->etp * ep + s / x->etp, &returned[s], i, x->room);
    }
    for (int r = 0; r < ranks; r++)
        run(KERNEL_return_rows, &(Call){.in = {returned[r], x->offsets[r]},
                                        .n_in = 2,
                                        .out = {places[r]},
                                        .n_out = 1,
                                        .attr = x->attr,
                                        .team = bench.team});
    return rows_of_all;
}

/* Every choice gets its token times the factor of its expert, once; the rows of all rounds are all
 * choices, and there are as many rounds as the fullest room needs. */
static void in_rounds(Exchange *x, int64_t room)
{
    const int ranks = x->ep * x->etp;
    Tensor places[MAX_RANKS];
    int64_t rows = 0, choices = 0;
    set_room(x, room);
    x->attr.exchange.rounds = true;
    const int64_t rounds = exchange_rounds(&x->attr, &x->all), most = need(x);
    assert_int_equal(rounds, most ? (most + room - 1) / room : 1);
    for (int r = 0; r < ranks; r++) {
        const int64_t n = x->tokens[r] * x->k;
        choices += n;
        places[r] = make(x, x->x[r].dtype, n + 1, D); /* the last row is nobody's */
        places[r].n[0] = n;
    }
    for (int32_t i = 0; i < rounds; i++) rows += run_round(x, i, places);
    assert_int_equal(rows, choices);
    for (int r = 0; r < ranks; r++) {
        places[r].n[0]++;
        for (int d = 0; d < D; d++)
            assert_true(isnan(get(&places[r], x->tokens[r] * x->k * D + d)));
        for (int i = 0; i < x->tokens[r] * x->k; i++)
            for (int d = 0; d < D; d++) {
                const int64_t at = (int64_t)get(&x->at[r], i) * D + d;
                const double want = get(&x->x[r], i / x->k * D + d) * (2 + get(&x->expert[r], i));
                if (fabs(get(&places[r], at) - want) > 1e-5 * fabs(want))
                    fail_msg("rank %d, choice %d: %g, not %g", r, i, get(&places[r], at), want);
            }
    }
}

static void rounds_bring_every_row_back(void **state)
{
    static Exchange x;
    int64_t more = 0;
    (void)state;
    assert_int_equal(arena_open(&x.arena, "exchange", (size_t)1 << 26), OK);
    for (int c = 0; c < 1000; c++) {
        open_exchange(&x, 1 + draw(4), 1 + draw(2), 1 + draw(MAX_K), c % 2 ? F32 : F64,
                      (Load)(c % N_LOADS));
        const int64_t room = 1 + draw((int)need(&x) + 2);
        in_rounds(&x, room);
        more += need(&x) > room;
    }
    assert_in_range(more, 300, 1000);
    arena_close(&x.arena);
}

/* A dropped choice has no row anywhere. */
static void dropped_choices_stay_dropped(void **state)
{
    static Exchange x;
    (void)state;
    assert_int_equal(arena_open(&x.arena, "exchange", (size_t)1 << 26), OK);
    do open_exchange(&x, 2, 1, 2, F32, HOT_EXPERT);
    while (x.tokens[0] < 3);
    Call call = {.in = {x.expert[0], x.gate[0]}, .n_in = 2, .out = {x.expert[0]}, .n_out = 1};
    call.attr.limit.capacity = 1e-9; /* one row of each expert */
    call.attr.limit.experts = x.experts;
    run(KERNEL_limit_choices, &call);
    run(KERNEL_assign_rows,
        &(Call){.in = {x.expert[0]}, .n_in = 1, .out = {x.at[0], x.offsets[0]}, .n_out = 2});
    set_room(&x, x.experts / 2);
    assert_int_equal(send_rows(&x, 0), OK);
    for (int i = 0; i < x.tokens[0] * 2; i++)
        assert_int_equal(get(&x.to[0], i) < 0, get(&x.at[0], i) < 0);
    arena_close(&x.arena);
}

static int open_bench(void **state)
{
    (void)state;
    bench_open(&bench);
    return 0;
}

static int close_bench(void **state)
{
    (void)state;
    bench_close(&bench);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(identity_experts_return_the_input),
                                       cmocka_unit_test(rooms_are_never_exceeded),
                                       cmocka_unit_test(rounds_bring_every_row_back),
                                       cmocka_unit_test(dropped_choices_stay_dropped)};
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
