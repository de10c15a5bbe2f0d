/* variants.c -- slices that run the same programs, and the tokens of each slice over cp.
 *
 * A rank of one that cp does not shard runs slices of one length by one program. Over cp each slice
 * is dealt by itself, so all ranks work on every slice, and on equal shares of it:
 *
 *     slices        0 1 2 3 4 5 6 7 | 8 9 10 11      zigzag on cp=2
 *     rank 0        0 1         6 7 | 8       11
 *     rank 1            2 3 4 5     |   9 10
 *
 * Keys of earlier slices stay where they are. Attention over them is a plan (compile/context.c),
 * also where keys of whole sequences are all-gathered. The blocks of a plan grow from slice to
 * slice, so each slice has its own programs. */
#include "job/job_parts.h"

#include <string.h>
#include "job/slices.h"

static Err refuse(const Job *job, ContextKind kind)
{
    return err_fail(ERR_CONFIG,
                    "parallel.slices=%d with mesh.cp=%d and parallel.context=%s: it shares out the "
                    "queries of a whole sequence, and a slice has keys without queries; set "
                    "parallel.context to gather, ulysses, ring or double-ring, or a schedule "
                    "without slices",
                    job->slices.n, job->settings.parallel.mesh.cp, context_name(kind));
}

Err job_slice_tokens(Job *job, Arena *arena)
{
    const SlicePlan *s = &job->slices;
    const SpanMap *map;
    if (s->n == 1 || !job->strategy.tokens) return OK;
    for (int u = 0; u < job->model.n_units; u++) {
        const ContextKind given = job_unit_options(&job->settings, u).context;
        const ContextKind kind = given == CONTEXT_AUTO ? job->context : given;
        if (context_moves_queries(kind)) return refuse(job, kind);
    }
    TRY(tokens_by_document(arena, job->tokens, s->cut, s->n, job->strategy.tokens->n_parts, &map));
    job->strategy.tokens = map;
    for (int i = 0; i < 2 * N_CONTEXTS; i++) job->strategy_of[i].tokens = map;
    job->slice_plan = (ContextChoice){.tokens = job->tokens};
    return context_row(context_name(CONTEXT_GATHER), arena, &job->slice_plan.row);
}

/* The elements of a span from row `at` on, below `end`, counted from `at`. */
static Span span_window(Span s, int64_t at, int64_t end)
{
    const int64_t skipped = s.lo < at ? (at - s.lo + s.step - 1) / s.step : 0;
    const Span rest = {s.lo + skipped * s.step, s.hi < end ? s.hi : end, s.step};
    return span_first((Span){rest.lo - at, rest.hi - at, rest.step}, span_count(rest));
}

/* The tokens of a slice, as each part of the map of all slices has them. */
static Err slice_map(const SpanMap *all, int64_t at, int64_t rows, Arena *arena,
                     const SpanMap **out)
{
    int32_t *first, n = 0;
    Span *span;
    TRY(ARENA_NEW(arena, all->n_parts + 1, &first));
    TRY(ARENA_NEW(arena, all->first[all->n_parts] + 1, &span));
    for (int p = 0; p < all->n_parts; p++) {
        for (int i = all->first[p]; i < all->first[p + 1]; i++) {
            const Span s = span_window(all->span[i], at, at + rows);
            if (span_count(s) > 0) span[n++] = s;
        }
        first[p + 1] = n;
    }
    return spans_map(arena, rows, all->n_parts, first, span, out);
}

/* Gives a variant the strategies and streams of the job, with the tokens of its slice. */
static Err set_tokens(const Job *job, JobVariant *v, Arena *arena)
{
    const int n = 2 * N_CONTEXTS, units = job->model.n_units;
    const SpanMap *all = job->strategy.tokens, *map;
    TRY(slice_map(all, v->at, v->rows, arena, &map));
    TRY(ARENA_NEW(arena, n, &v->strategy));
    TRY(ARENA_NEW(arena, units, &v->stream));
    memcpy(v->strategy, job->strategy_of, (size_t)n * sizeof *v->strategy);
    memcpy(v->stream, job->stream, (size_t)units * sizeof *v->stream);
    for (int i = 0; i < n; i++) v->strategy[i].tokens = map;
    for (int u = 0; u < units; u++)
        for (int c = 0; c < v->stream[u].n_cuts; c++)
            if (v->stream[u].cut[c].map == all) v->stream[u].cut[c].map = map;
    return OK;
}

/* The variant of slice q: a new one, or that of an earlier slice. Variant 0 has most rows. */
static Err variant_of_slice(Job *job, int q, int *n, Arena *arena, int *out)
{
    const SlicePlan *s = &job->slices;
    const int64_t at = s->cut[q], rows = s->cut[q + 1] - at;
    const bool alone = s->n > 1 && job->strategy.tokens;
    int v = 0;
    while (v < *n && (job->variant[v].rows != rows || (alone && job->variant[v].at != at))) v++;
    *out = v;
    if (v < *n) return OK;
    job->variant[(*n)++] = (JobVariant){.rows = rows, .at = at};
    return alone ? set_tokens(job, &job->variant[v], arena) : OK;
}

static int longest_slice(const SlicePlan *s)
{
    int longest = 0;
    for (int q = 1; q < s->n; q++)
        if (s->cut[q + 1] - s->cut[q] > s->cut[longest + 1] - s->cut[longest]) longest = q;
    return longest;
}

Err job_find_variants(Job *job, Arena *arena)
{
    const SlicePlan *s = &job->slices;
    const int micros = job->settings.micros;
    int16_t *variant_of;
    int n = 0, v;
    TRY(ARENA_NEW(arena, (int64_t)micros * s->n, &variant_of));
    TRY(ARENA_NEW(arena, s->n, &job->variant));
    TRY(variant_of_slice(job, longest_slice(s), &n, arena, &v));
    for (int q = 0; q < s->n; q++) {
        TRY(variant_of_slice(job, q, &n, arena, &v));
        for (int m = 0; m < micros; m++) variant_of[m * s->n + q] = (int16_t)v;
    }
    job->programs.variant_of = variant_of;
    job->programs.n_variants = n;
    job->programs.micros = micros;
    job->programs.slices = s->n;
    return OK;
}
