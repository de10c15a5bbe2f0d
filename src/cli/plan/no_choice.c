/* no_choice.c -- why no plan has the keys that are given, or the choice of --explain-choice:
 * the space has none, the compiler refuses them, or none fits.
 *
 *     --gpus 2 --explain-choice mesh.tp=3     3 does not divide 2 ranks
 *     mesh.pp=2 --explain-choice mesh.tp=2    together they are 4 ranks of 2 */
#include <math.h>
#include <stdio.h>

#include "cli/plan/verb.h"

/* "mesh.tp=3 x mesh.pp=2"; returns their product. */
static int64_t fixed_axes(const PlanFixed *f, Text *t)
{
    const struct {
        const char *name;
        int ranks;
    } axis[] = {{"dp", f->dp}, {"cp", f->cp}, {"tp", f->tp}, {"pp", f->pp}};
    int64_t product = 1;
    const char *join = "";
    for (int i = 0; i < 4; i++) {
        if (axis[i].ranks == 0) continue;
        text_add(t, "%smesh.%s=%d", join, axis[i].name, axis[i].ranks);
        product *= axis[i].ranks;
        join = " x ";
    }
    return product;
}

/* Axes whose product does not divide the ranks. Returns false if it does. */
static bool axes_text(const PlanSpace *s, Arena *temp, Text *t)
{
    const PlanFixed *f = &s->fixed;
    const char *axes = NULL;
    Text fixed = text_in(temp);
    const int64_t product = fixed_axes(f, &fixed);
    const bool all = f->dp && f->cp && f->tp && f->pp;
    if (s->ranks % product == 0 && !(all && product != s->ranks)) return false;
    if (text_done(&fixed, &axes) != OK) return false;
    text_add(t, "%s: the %d rank%s of --gpus %s %lld", axes, s->ranks, s->ranks == 1 ? "" : "s",
             all ? "are not" : "are no multiple of", (long long)product);
    return true;
}

/* The least ranks along an axis that the choices need. */
static int least_ranks(int fixed, bool several) { return fixed ? fixed : several ? 2 : 1; }

/* The choice has an effect on several ranks along an axis, and there cannot be several. */
static bool alone_text(const PlanSpace *s, const char *axis, int ranks, Text *t)
{
    if (ranks > 1 && ranks <= s->ranks) return false;
    text_add(t, "it has an effect on two or more ranks along %s, and ", axis);
    if (s->ranks == 1)
        text_add(t, "there is one rank");
    else
        text_add(t, "mesh.%s=1 is given", axis);
    return true;
}

static bool cp_text(const PlanSpace *s, Text *t)
{
    const int cp = least_ranks(s->fixed.cp, s->fixed.over_cp);
    const long long tokens = s->base->batch.seq_len;
    if (s->fixed.over_cp && alone_text(s, "cp", cp, t)) return true;
    if (cp == 1 || tokens / cp >= MIN_CP_TOKENS) return false;
    text_add(t,
             "mesh.cp=%d leaves a rank %lld of the %lld tokens of a sequence; plans have %d or "
             "more on a rank",
             cp, tokens / cp, tokens, MIN_CP_TOKENS);
    return true;
}

static bool pp_text(const PlanSpace *s, Text *t)
{
    const int pp = least_ranks(s->fixed.pp, s->fixed.over_pp);
    const int units = (int)s->base->config->n_layers + 2;
    if (s->fixed.over_pp && alone_text(s, "pp", pp, t)) return true;
    if (pp > units) {
        text_add(t, "mesh.pp=%d: the model has %d units (embedding, layers, head) for stages", pp,
                 units);
        return true;
    }
    if (s->fixed.chunks * pp <= units || pp == 1) return false;
    text_add(t,
             "parallel.chunks=%d on %d stages are more chunks than the %d units of the model "
             "(embedding, layers, head)",
             s->fixed.chunks, pp, units);
    return true;
}

static bool tp_text(const PlanSpace *s, Text *t)
{
    const int node = s->cluster->rates.level[0].ranks, tp = s->fixed.tp;
    if (tp > s->base->config->n_heads)
        text_add(t, "mesh.tp=%d: the model has %lld heads for ranks along tp", tp,
                 (long long)s->base->config->n_heads);
    else if (node && tp > node)
        text_add(t, "mesh.tp=%d: plans keep tp among the %d ranks with the fastest links of %s", tp,
                 node, s->cluster->name);
    else
        return false;
    return true;
}

/* Sequence parallelism and ZeRO without ranks to share with. */
static bool shares_text(const PlanSpace *s, Text *t)
{
    const PlanFixed *f = &s->fixed;
    const int others = (f->tp ? f->tp : 1) * (f->pp ? f->pp : 1);
    if ((f->sequence > 0 || f->over_tp) && alone_text(s, "tp", least_ranks(f->tp, true), t))
        return true;
    if (f->zero <= 0 || (s->ranks > others && f->dp != 1)) return false;
    text_add(t, "ZeRO shards over two or more ranks along dp and cp, and the keys leave one");
    return true;
}

static bool dp_text(const PlanSpace *s, Text *t)
{
    const PlanFixed *f = &s->fixed;
    const int others = f->tp * f->cp * f->pp; /* 0: one of them is free */
    const int dp = f->dp || others == 0 ? f->dp : s->ranks / others;
    if (dp <= s->global) return false;
    text_add(t, "mesh.dp=%d leaves ranks without one of the %lld sequences of batch.global", dp,
             (long long)s->global);
    return true;
}

static bool experts_text(const PlanSpace *s, Text *t)
{
    const int ep = s->fixed.ep, etp = s->fixed.etp;
    const long long experts = s->base->config->experts.n;
    if (ep <= 1 && etp <= 1) return false;
    if (experts == 0)
        text_add(t, "mesh.%s=%d: the model has no experts", ep > 1 ? "ep" : "etp",
                 ep > 1 ? ep : etp);
    else if (ep > 1 && experts % ep != 0)
        text_add(t, "mesh.ep=%d does not divide the %lld experts of a layer", ep, experts);
    else
        text_add(t, "mesh.ep and mesh.etp: ep divides the ranks of a stage, and etp is 1 or tp, "
                    "beside ep of 2 or more");
    return true;
}

static bool too_many_text(const PlanSpace *s, Text *t)
{
    const PlanFixed *f = &s->fixed;
    if (f->dp || f->cp || f->tp || f->pp || s->ranks <= s->global) return false;
    text_add(t,
             "no mesh of dp (at most the %lld sequences of batch.global), tp (at most %lld heads), "
             "pp (at most %lld units) and cp (%d tokens of a sequence or more on a rank) has so "
             "many",
             (long long)s->global, (long long)s->base->config->n_heads,
             (long long)s->base->config->n_layers + 2, MIN_CP_TOKENS);
    return true;
}

static void space_text(const PlanSpace *s, const char *with, Arena *temp, Text *t)
{
    text_add(t, "the space has no plan%s for %d rank%s: ", with, s->ranks,
             s->ranks == 1 ? "" : "s");
    if (too_many_text(s, t)) return;
    if (tp_text(s, t) || axes_text(s, temp, t) || dp_text(s, t) || cp_text(s, t) || pp_text(s, t) ||
        experts_text(s, t) || shares_text(s, t))
        return;
    text_add(t,
             "no mesh takes it together with the other keys that are given; docs/PLAN.md lists the "
             "values");
}

/* Of the plans that the compiler takes; infinite: there are none. */
static double least_bytes(const PlanSearch *s)
{
    double least = (double)INFINITY;
    for (int i = 0; i < s->n; i++)
        if (s->node[i].level != LEVEL_REFUSED && s->node[i].memory_bytes < least)
            least = s->node[i].memory_bytes;
    return least;
}

static void refused_text(PlanSearch *s, const char *with, Text *t)
{
    double bytes;
    const bool known = plan_link(s, &s->node[0].point, &bytes) != OK;
    text_add(t, "the compiler refuses the %d plan%s%s: %s", s->n, s->n == 1 ? "" : "s", with,
             known ? err_text() : "");
}

Err plan_refused(const PlanVerb *v, PlanSearch *s, const char **out)
{
    Text t = text_in(v->arena);
    *out = NULL;
    if (s->n == 0 || !isinf(least_bytes(s))) return OK;
    refused_text(s, "", &t);
    return text_done(&t, out);
}

Err plan_no_choice(const PlanVerb *v, PlanSearch *s, const char **out)
{
    Text t = text_in(v->arena);
    char need[24], limit[24];
    const double least = least_bytes(s);
    if (s->n == 0)
        space_text(&s->space, " with it", v->temp, &t);
    else if (isinf(least))
        refused_text(s, " with it", &t);
    else
        text_add(&t, "none of the %d plans with it fits: each needs at least %s of %s", s->n,
                 text_bytes((int64_t)least, need),
                 text_bytes((int64_t)v->report.limit_bytes, limit));
    return text_done(&t, out);
}

Err plan_no_space(const PlanVerb *v, int ranks, const char **out)
{
    Text t = text_in(v->arena);
    PlanSpace s = v->space;
    s.ranks = ranks;
    space_text(&s, "", v->temp, &t);
    return text_done(&t, out);
}
