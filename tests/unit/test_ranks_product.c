/* test_ranks_product.c -- all layouts of up to 8 ranks: the Cartesian product of (dp_replicate,
 * dp_shard, tp, zero, reduce, sequence, regather). Every rank of each is compiled and linked;
 * nothing runs. The members of a transfer agree on it, sums over all ranks equal the formulas,
 * and transfers that may overlap with compute end later than they begin. */
#include "support/expect.h"
#include "support/jobs.h"

#include "schedule/traffic.h"
#include "verify/layouts.h"

enum { RANKS = 8, MICROS = 2 };

typedef struct {
    int64_t gather, scatter, reduce; /* bytes that leave all ranks, over dp axes */
    int64_t weights;                 /* bytes of all packs of one dp rank, over tp */
} Totals;

/* Counts transfers of state: those over a dp axis that are no scalars. */
static void add_rank(const Job *job, Totals *t)
{
    Traffic traffic;
    const unsigned dp = mesh_axes(&job->mesh, VIEW_DENSE, "dp");
    DO(linked_traffic(&job->linked, &traffic));
    for (int i = 0; i < traffic.n; i++) {
        const TrafficRow *row = &traffic.row[i];
        if (row->scalar || !(row->axes & dp)) continue;
        const int64_t bytes = (int64_t)row->sent_bytes;
        if (row->kind == COMM_ALL_GATHER) t->gather += bytes;
        if (row->kind == COMM_REDUCE_SCATTER) t->scatter += bytes;
        if (row->kind == COMM_ALL_REDUCE) t->reduce += bytes;
    }
    if (mesh_part(&job->mesh, VIEW_DENSE, dp, job->linked.rank) == 0)
        for (int p = 0; p < job->model.n_packs; p++)
            t->weights += 8 * job->linked.pack[p].mine.pack_count;
}

/* The formulas in f64: p ranks share a pack of n bytes; m micro-batches. */
static void expect_formula(const ParallelSettings *p, const Totals *t, const char *words)
{
    const int64_t shard = p->mesh.dp_shard, copies = p->mesh.dp_replicate, n = t->weights;
    const int64_t dp = shard * copies, times = p->reduce_each || p->zero >= 2 ? MICROS : 1;
    if (p->zero == 0) {
        assert_int_equal(t->gather + t->scatter, 0);
        if (t->reduce != 2 * (dp - 1) * n * times) fail_msg("%s: all-reduce", words);
        return;
    }
    if (t->scatter != copies * (shard - 1) * n * times) fail_msg("%s: scatter", words);
    if (t->reduce != 2 * (copies - 1) * n * times) fail_msg("%s: over copies", words);
    if (p->zero < 3 && t->gather != copies * (shard - 1) * n) fail_msg("%s: gather", words);
    if (p->zero == 3 && t->gather < copies * (shard - 1) * n) fail_msg("%s: gathers", words);
}

/* Checks that a REDUCE, and a GATHER if packs are gathered, has RUNs between its begin and its
 * wait; with in_order none has. */
static void expect_overlap(const Job *job, bool in_order, const char *words)
{
    int apart[2] = {0};
    const LinkedProgram *lp = &job->linked;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        const bool gather = l->action.kind == A_GATHER;
        if ((!gather && l->action.kind != A_REDUCE) || l->begun >= l->n_steps) continue;
        bool runs = false;
        for (int k = i + 1; k < l->end; k++) runs = runs || lp->list[k].action.kind == A_RUN;
        apart[gather] += runs;
    }
    if (in_order && apart[0] + apart[1] > 0) fail_msg("%s: in order, yet apart", words);
    if (in_order) return;
    if (apart[0] == 0) fail_msg("%s: every reduction is waited for at once", words);
    if (job->settings.parallel.zero > 0 && apart[1] == 0)
        fail_msg("%s: every gather is waited for at once", words);
}

static void compile_layout(ParallelSettings p, int *compiled)
{
    char words[LAYOUT_TEXT_BYTES];
    Totals t = {0};
    layout_words(&p, words);
    for (p.rank = 0; p.rank < layout_ranks(&p); p.rank++) {
        static Job job; /* large */
        Arena arena;
        JobSettings set = test_job_settings(*compiled % 2 ? "llama" : "gpt2", JOB_STEP);
        set.parallel = p;
        set.micros = MICROS;
        set.optim.block = 16;
        DO(arena_open(&arena, "product", ARENA_PLENTY));
        if (job_compile(&set, &arena, &job) != OK)
            fail_msg("%s: rank %d: %s", words, p.rank, err_text());
        add_rank(&job, &t);
        if (p.rank == 0 && p.mesh.dp_shard > 1) expect_overlap(&job, p.in_order, words);
        arena_close(&arena);
    }
    expect_formula(&p, &t, words);
    (*compiled)++;
}

static void the_full_product(void **state)
{
    int compiled = 0;
    (void)state;
    for (int copies = 1; copies <= RANKS; copies++)
        for (int shard = 1; copies * shard <= RANKS; shard++)
            for (int tp = 1; copies * shard * tp <= RANKS; tp++)
                for (int variant = 0; variant < 32; variant++) {
                    const ParallelSettings p = {
                        .mesh = {.dp_replicate = copies, .dp_shard = shard, .tp = tp},
                        .zero = variant & 3,
                        .reduce_each = variant >> 2 & 1,
                        .sequence = variant >> 3 & 1,
                        .keep_gathered = variant >> 4 & 1,
                        .in_order = (copies + shard + tp + variant) % 5 == 0};
                    if (p.keep_gathered && !p.sequence) continue; /* regather has no effect */
                    compile_layout(p, &compiled);
                }
    assert_int_equal(compiled, 912);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_full_product)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
