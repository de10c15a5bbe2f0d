/* ops.c -- the parser of the rows of ops.def: signatures to operands, letters to extents. */
#include "ir/ops.h"

#include "ir/pairs.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const OpInfo table[N_OPS] = {
#define OP(id, kernel_, signature_, rows_, flops_, class_, gradient_)                              \
    [OP_##id] = {.name = #id,                                                                      \
                 .kernel = KERNEL_##kernel_,                                                       \
                 .signature = signature_,                                                          \
                 .rows = rows_,                                                                    \
                 .flops = flops_,                                                                  \
                 .class = CLASS_##class_},
#include "ir/ops.def"
#undef OP
};

const OpInfo *op_info(OpId op)
{
    MUST(op < N_OPS, "op %d", (int)op);
    return &table[op];
}

/* Parses "[t,(hc)]" from the character after '[' to the one after ']'. */
static const char *read_dims(const char *s, Operand *o)
{
    for (; *s != ']'; s++) {
        if (*s == '*') o->ndim = -1;
        if (*s == '!') o->ndim = -2;
        if (!isalnum((unsigned char)*s) && *s != '(') continue;
        MUST(o->ndim < MAX_DIMS, "operand %s", o->name);
        if (*s == '(') {
            o->second[o->ndim] = s[2];
            if (s[3] != ')') o->third[o->ndim] = s[3];
            o->letter[o->ndim++] = s[1];
            while (*s != ')') s++;
        } else {
            o->letter[o->ndim++] = *s;
        }
    }
    return s + 1;
}

/* Parses "bias?+[o]" or "rstd~[t]". */
static const char *read_operand(const char *s, Operand *o)
{
    int n = 0;
    *o = (Operand){.ndim = 0};
    for (; *s != '['; s++) {
        if (*s == '?')
            o->optional = true;
        else if (*s == '~')
            o->wide = true;
        else if (*s == '#')
            o->integer = true;
        else if (*s == '%')
            o->fp8 = true;
        else if (*s == '+')
            o->added = true;
        else
            o->name[n++] = *s;
    }
    return read_dims(s + 1, o);
}

static Signature parse_signature(OpId op)
{
    Signature sig = {0};
    bool outputs = false;
    for (const char *s = op_info(op)->signature; *s;) {
        if (*s == ' ')
            s++;
        else if (strncmp(s, "->", 2) == 0)
            outputs = true, s += 2;
        else
            s = read_operand(s, outputs ? &sig.out[sig.n_out++] : &sig.in[sig.n_in++]);
    }
    return sig;
}

/* Parsed once: compilation reads signatures millions of times in a search for plans. */
static Signature parsed[N_OPS];

static void parse_all(void)
{
    for (int op = 0; op < N_OPS; op++) parsed[op] = parse_signature((OpId)op);
}

Signature op_signature(OpId op)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_all);
    return parsed[op];
}

static bool is_sum_of(const Operand *o, const Operand *out, int output)
{
    if (strncmp(o->name, "sum", 3) != 0) return false;
    return o->name[3] == '_' ? strcmp(o->name + 4, out->name) == 0 : !o->name[3] && output == 0;
}

int op_sum_operand(OpId op, int output)
{
    const Signature sig = op_signature(op);
    for (int i = 0; i < sig.n_in; i++)
        if (is_sum_of(&sig.in[i], &sig.out[output], output)) return i;
    return -1;
}

bool op_is_sum(OpId op, int index)
{
    const Signature sig = op_signature(op);
    for (int j = 0; j < sig.n_out && index < sig.n_in; j++)
        if (is_sum_of(&sig.in[index], &sig.out[j], j)) return true;
    return false;
}

/* The extents that the letters of one op stand for, as far as they are known. */
typedef struct {
    Dim letter[128];
    bool known[128];
    Dims any; /* shape of the operands with * */
    bool any_known;
} Letters;

static Err bind_letter(Letters *l, const char *op, const Operand *o, char c, Dim d)
{
    if (isdigit((unsigned char)c)) {
        if (d.cap == c - '0' && d.slot == NO_SLOT) return OK;
        return err_fail(ERR_CHECK, "%s: %s has extent %lld where the op wants %c", op, o->name,
                        (long long)d.cap, c);
    }
    const int i = (int)c & 127;
    if (l->known[i] && !dim_same(l->letter[i], d))
        return err_fail(ERR_CHECK, "%s: extent %c of %s is %lld%s, of another operand %lld%s", op,
                        c, o->name, (long long)d.cap, d.slot == NO_SLOT ? "" : " (bounded)",
                        (long long)l->letter[i].cap,
                        l->letter[i].slot == NO_SLOT ? "" : " (bounded)");
    l->letter[i] = d;
    l->known[i] = true;
    return OK;
}

/* Binds (hc): the attribute has c, unless both are known: (tk) of the rows of experts. */
static Err bind_product(Letters *l, const char *op, const Operand *o, int i, Dim d,
                        const OpAttr *attr)
{
    const int a = o->letter[i] & 127, b = o->second[i] & 127;
    const int64_t last = o->third[i] ? attr->heads.inner : 1, size = attr->heads.size * last;
    if (l->known[a] && l->known[b] && !o->third[i]) {
        if (d.slot == NO_SLOT && d.cap == l->letter[a].cap * l->letter[b].cap) return OK;
        return err_fail(ERR_CHECK, "%s: extent %lld of %s is not %lld x %lld", op, (long long)d.cap,
                        o->name, (long long)l->letter[a].cap, (long long)l->letter[b].cap);
    }
    if (size == 0 && d.cap == 0) { /* a rank without rows: the first factor can be any */
        if (o->third[i]) TRY(bind_letter(l, op, o, o->third[i], dim_of(last)));
        return bind_letter(l, op, o, o->second[i], dim_of(attr->heads.size));
    }
    if (d.slot != NO_SLOT)
        return err_fail(ERR_CHECK, "%s: an extent of %s that is split in two cannot be bounded", op,
                        o->name);
    if (size <= 0 || d.cap % size != 0)
        return err_fail(ERR_CHECK, "%s: extent %lld of %s is no multiple of %s %lld", op,
                        (long long)d.cap, o->name,
                        o->third[i] ? "the dims within it," : "the head size", (long long)size);
    if (o->third[i]) TRY(bind_letter(l, op, o, o->third[i], dim_of(last)));
    TRY(bind_letter(l, op, o, o->second[i], dim_of(attr->heads.size)));
    return bind_letter(l, op, o, o->letter[i], dim_of(d.cap / size));
}

static Err bind_operand(Letters *l, OpId op, const OpAttr *attr, const Operand *o, const Dims *d)
{
    const char *name = op_info(op)->name;
    if (o->ndim == -2) return OK;
    if (o->ndim == -1) {
        bool same = !l->any_known || l->any.ndim == d->ndim;
        for (int i = 0; same && l->any_known && i < d->ndim; i++)
            same = dim_same(l->any.dim[i], d->dim[i]);
        if (!same)
            return err_fail(ERR_CHECK, "%s: %s has another shape than the operands before it", name,
                            o->name);
        l->any = *d;
        l->any_known = true;
        return OK;
    }
    if (d->ndim != o->ndim)
        return err_fail(ERR_CHECK, "%s: %s has %d dims, the op wants %d", name, o->name, d->ndim,
                        o->ndim);
    for (int i = 0; i < o->ndim; i++) {
        if (o->second[i])
            TRY(bind_product(l, name, o, i, d->dim[i], attr));
        else
            TRY(bind_letter(l, name, o, o->letter[i], d->dim[i]));
    }
    return OK;
}

static Err solve_operand(const Letters *l, OpId op, const Operand *o, const Dims *given, Dims *out)
{
    const char *name = op_info(op)->name;
    if (o->ndim < 0) {
        if (o->ndim == -2 && !given)
            return err_fail(ERR_CHECK, "%s: the shape of %s must be given", name, o->name);
        *out = o->ndim == -2 ? *given : l->any;
        return OK;
    }
    out->ndim = o->ndim;
    for (int i = 0; i < o->ndim; i++) {
        const int a = o->letter[i] & 127, b = o->second[i] & 127;
        if (isdigit((unsigned char)o->letter[i]))
            out->dim[i] = dim_of(o->letter[i] - '0');
        else if (l->known[a] && o->second[i])
            out->dim[i] = dim_of(l->letter[a].cap * l->letter[b].cap *
                                 (o->third[i] ? l->letter[o->third[i] & 127].cap : 1));
        else if (l->known[a])
            out->dim[i] = l->letter[a];
        else if (given && i < given->ndim)
            out->dim[i] = given->dim[i];
        else
            return err_fail(ERR_CHECK, "%s: extent %c of %s is not known", name, o->letter[i],
                            o->name);
    }
    return OK;
}

/* ERR_CHECK unless every query head has a key head to read, if there are key heads:
 * device/heads.h. */
static Err check_heads(const Letters *l, OpId op, const OpAttr *attr)
{
    const int64_t heads = l->letter['h'].cap, key_heads = l->letter['g'].cap;
    const int64_t group = attr->kernel.attention.group, at = attr->kernel.attention.head_at;
    const char *name = op_info(op)->name;
    if (heads == 0 || key_heads == 0) return OK;
    if (group == 0 && (at != 0 || heads % key_heads != 0))
        return err_fail(ERR_CHECK,
                        "%s: %lld heads from place %lld on cannot share %lld key heads evenly; set "
                        "the attribute group",
                        name, (long long)heads, (long long)at, (long long)key_heads);
    if (group > 0 && (at < 0 || at >= group || (at + heads - 1) / group >= key_heads))
        return err_fail(ERR_CHECK,
                        "%s: %lld heads from place %lld of a group of %lld on read past the last "
                        "of %lld key heads",
                        name, (long long)heads, (long long)at, (long long)group,
                        (long long)key_heads);
    return OK;
}

static Err bind_inputs(Letters *l, OpId op, const OpAttr *attr, int n_in, const Dims *in)
{
    const Signature sig = op_signature(op);
    int least = 0;
    for (int i = 0; i < sig.n_in; i++) least += !sig.in[i].optional;
    const bool many = op == OP_join || op == OP_after; /* as many as there are parts */
    if (n_in < least || (n_in > sig.n_in && !many))
        return err_fail(ERR_CHECK, "%s: %d inputs, the op wants %d to %d", op_info(op)->name, n_in,
                        least, sig.n_in);
    for (int i = 0; i < n_in && i < sig.n_in; i++)
        TRY(bind_operand(l, op, attr, &sig.in[i], &in[i]));
    return OK;
}

Err op_infer(OpId op, const OpAttr *attr, int n_in, const Dims *in, const Dims *given, int n_out,
             Dims *out)
{
    const Signature sig = op_signature(op);
    Letters l = {0};
    TRY(bind_inputs(&l, op, attr, n_in, in));
    if (op_attends(op) || op_attends_along(op)) TRY(check_heads(&l, op, attr));
    MUST(n_out <= sig.n_out, "%s has %d outputs", op_info(op)->name, n_out);
    for (int i = 0; i < n_out; i++)
        TRY(solve_operand(&l, op, &sig.out[i], given ? &given[i] : NULL, &out[i]));
    return OK;
}

/* Parses "10to" from *at to its end: the factor times the extents. */
static double term(const Letters *l, const OpAttr *attr, const char **at)
{
    char *end;
    double product = (double)strtol(*at, &end, 10);
    for (; *end && *end != '+'; end++) {
        if (*end == '@')
            product *= attention_pairs(&attr->kernel, &l->letter['t'], &l->letter['s'], 0);
        else if (*end == '*')
            product *= (double)dims_count(&l->any);
        else
            product *= (double)l->letter[*end & 127].cap;
    }
    *at = end;
    return product;
}

/* The first term of a heavy op is its heavy part. */
Flops op_flops(OpId op, const OpAttr *attr, int n_in, const Dims *in, int n_out, const Dims *out)
{
    const Signature sig = op_signature(op);
    Letters l = {0};
    Flops flops = {0, 0};
    if (bind_inputs(&l, op, attr, n_in, in) != OK) return flops;
    for (int i = 0; i < n_out; i++)
        if (bind_operand(&l, op, attr, &sig.out[i], &out[i]) != OK) return flops;
    for (const char *at = op_info(op)->flops; *at; at += *at == '+') {
        const bool first = at == op_info(op)->flops;
        const double some = term(&l, attr, &at);
        flops.all += some;
        if (first && op_info(op)->class == CLASS_HEAVY) flops.heavy = some;
    }
    return flops;
}

int op_rows(OpId op, OpRow row[MAX_ROWS])
{
    int n = 0;
    for (const char *s = op_info(op)->rows; *s;) {
        if (*s == ' ') {
            s++;
            continue;
        }
        MUST(n < MAX_ROWS, "%s has too many rows", op_info(op)->name);
        OpRow r = {.letter = *s++};
        if (*s == '=') r.with = s[1], s += 2;
        if (*s == '+' || *s == '^') r.partial = *s++;
        row[n++] = r;
    }
    return n;
}

int operand_dim(const Operand *operand, char letter)
{
    for (int i = 0; i < operand->ndim; i++)
        if (operand->letter[i] == letter || operand->second[i] == letter ||
            operand->third[i] == letter)
            return i;
    return -1;
}

ProductSides operand_sides(const Operand *operand, int dim, char letter, const OpAttr *attr,
                           int64_t extent)
{
    const int64_t last = operand->third[dim] ? attr->heads.inner : 1;
    const int64_t within = attr->heads.size * last, first = within ? extent / within : 0;
    if (operand->third[dim] == letter) return (ProductSides){first * attr->heads.size, 1};
    if (operand->second[dim] == letter) return (ProductSides){first, last};
    return (ProductSides){1, within};
}
