/* units_text.c -- runs of units with the same options. */
#include "cli/units_text.h"

#include <jansson.h>
#include <string.h>

/* The last unit of the run that begins with unit u. */
static int run_end(const Job *job, int u)
{
    const int n = job->model.n_units;
    while (u + 1 < n - 1 && u > 0 && job_same_options(&job->unit[u], &job->unit[u + 1])) u++;
    return u;
}

const char *precision_word(DType dtype, const Fp8Options *fp8)
{
    return dtype_is_fp8(fp8->compute) && dtype != F64 ? "fp8" : dtype_name(dtype);
}

void fp8_text(const JobSettings *s, Text *t)
{
    const Fp8Options *o = &s->compile.fp8;
    static const char *const scale[] = {[SCALING_TENSOR] = "each tensor",
                                        [SCALING_BLOCK] =
                                            "1 x 128 elements, and for 128 x 128 of weights",
                                        [SCALING_DELAYED] = "each tensor, by earlier steps"};
    if (!dtype_is_fp8(o->compute)) return;
    text_add(t, "  fp8        GEMMs of layers with %s%s%s: %s, gradients %s, a scale for %s\n",
             o->spare_ends ? "all weights"
             : o->names    ? o->names
                           : "no weights",
             o->spare_ends && s->config->n_layers > 2 ? ", but not of the first and the last" : "",
             s->parallel.units ? ", and rules of layers" : "", dtype_name(o->compute),
             dtype_name(o->gradient), scale[o->scaling]);
    if (!o->names && !s->parallel.units) return;
    if (s->config->experts.n > 0)
        text_add(t, "             experts %s\n",
                 o->experts ? "too, each with scales of its own"
                            : "stay bf16: their GEMMs of 8 bits have not run on a GPU");
    text_add(t, "             their weights are stored and gathered in %s\n",
             o->code_weights ? "8 bits, quantized once a step"
                             : "bf16, and quantized where they are read");
}

static const char *names_or_none(const char *names) { return names ? names : "none"; }

/* When the gradients of a unit are reduced: weights with levels of their own may differ. */
static const char *reduce_text(const Job *job, int unit)
{
    const UnitOptions *o = &job->unit[unit];
    const Graph *g = &job->model.kind[job->model.unit[unit].kind];
    int each = 0;
    for (int i = 0; i < g->n_params; i++) {
        const int level = job_weight_level(o->zero_weights, g->param[i].name);
        each += o->reduce_each || (level < 0 ? o->zero : level) >= 2;
    }
    if (each > 0 && each < g->n_params) return "the last, at levels 2 and 3 after each";
    return each > 0 ? "each" : "the last";
}

void units_text(const Job *job, Text *t)
{
    const Unit *unit = job->model.unit;
    const char *head = "  units      ";
    if (!job->settings.parallel.units && !job->settings.parallel.zero_weights) return;
    for (int u = 0, last; u < job->model.n_units; u = last + 1) {
        const UnitOptions *o = &job->unit[u];
        last = run_end(job, u);
        text_add(t, "%s%s", head, unit[u].name);
        if (last > u) text_add(t, "-%s", strrchr(unit[last].name, '.') + 1);
        text_add(t, ": zero %d, ", o->zero);
        if (o->zero_weights) text_add(t, "zero_weights %s, ", o->zero_weights);
        text_add(t, "gradients reduced after %s micro-batch, recompute %s, offload %s",
                 reduce_text(job, u), job_recompute_text(o), names_or_none(o->offload_names));
        if (job->settings.parallel.mesh.tp > 1)
            text_add(t, ", sequence %s", o->sequence ? "true" : "false");
        if (job->settings.parallel.mesh.cp > 1)
            text_add(t, ", context %s", context_name(o->context));
        text_add(t, ", regather %s", o->keep_gathered ? "false" : "true");
        if (dtype_is_fp8(job->settings.compile.fp8.compute))
            text_add(t, ", fp8 %s", names_or_none(o->fp8_names));
        text_add(t, "\n");
        head = "             ";
    }
}

json_t *units_options_json(const Job *job)
{
    json_t *list = json_array();
    for (int u = 0, last; u < job->model.n_units; u = last + 1) {
        const UnitOptions *o = &job->unit[u];
        last = run_end(job, u);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:s, s:b, s:s, s:s, s:b, s:s, s:b, s:s}", "first",
                            job->model.unit[u].name, "last", job->model.unit[last].name, "zero",
                            o->zero, "zero_weights", names_or_none(o->zero_weights), "reduce_each",
                            o->zero >= 2 || o->reduce_each, "recompute", job_recompute_text(o),
                            "offload", names_or_none(o->offload_names), "sequence", o->sequence,
                            "context", context_name(o->context), "regather", !o->keep_gathered,
                            "fp8", names_or_none(o->fp8_names)));
    }
    return list;
}
