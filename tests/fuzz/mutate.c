/* mutate.c -- runs a fuzz target on mutated files, without libFuzzer: any compiler, any sanitizer,
 * and the same inputs every time.
 *
 *     mutate_NAME SEED COUNT FILE...      input i is a mutation of one of the files by (SEED, i)
 *     mutate_NAME SEED +I FILE...         input I alone
 *
 * A mutation is one to eight of: change a bit, a byte or a number, cut the end, remove, repeat or
 * move a stretch. The target aborts or the process dies on a fault; the number of the input is
 * printed before, by the handler of the signal or of the sanitizer. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"

#include <signal.h>
#include <stdbool.h>
#include "base/philox.h"

enum { MAX_FILES = 64, MAX_BYTES = 1 << 20, MAX_EDITS = 8 };

typedef struct {
    uint8_t *at;
    size_t size;
} Input;

static volatile sig_atomic_t current;
static const char *repeat[2]; /* program, seed */

/* Of the sanitizers, if the build has one: they end the process without a signal. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* The process is lost; snprintf without floats needs no lock here. */
static void print_repeat(void)
{
    char text[400];
    const int n = snprintf(text, sizeof text, "FAILED; repeat: %s %s +%d FILES\n", repeat[0],
                           repeat[1], (int)current);
    if (write(STDERR_FILENO, text, (size_t)n) < 0) _exit(2);
}

static void on_fault(int signal)
{
    print_repeat();
    _exit(128 + signal);
}

static uint64_t draw(const Random *r, uint64_t *next, uint64_t below)
{
    return below ? random_bits(r, (*next)++) % below : 0;
}

/* An interesting byte: a digit, a bracket, or anything. */
static uint8_t new_byte(const Random *r, uint64_t *next)
{
    static const char common[] = "0919-{}[]\",:\n \\.eE";
    return draw(r, next, 2) ? (uint8_t)draw(r, next, 256)
                            : (uint8_t)common[draw(r, next, sizeof common - 1)];
}

static void edit(const Random *r, uint64_t *next, Input *in)
{
    const size_t from = draw(r, next, in->size), to = draw(r, next, in->size);
    size_t n = draw(r, next, 32);
    if (in->size == 0) return;
    if (n > in->size - from) n = in->size - from;
    switch (draw(r, next, 7)) {
    case 0:
        in->at[from] ^= (uint8_t)(1u << draw(r, next, 8));
        break;
    case 1:
        in->at[from] = new_byte(r, next);
        break;
    case 2:
        memset(in->at + from, draw(r, next, 2) ? 0xff : 0, n < 8 ? n : 8);
        break;
    case 3:
        in->size = draw(r, next, 8) ? in->size - n : from;
        break;
    case 4:
        memmove(in->at + from, in->at + from + n, in->size - from - n);
        in->size -= n;
        break;
    case 5:
        if (in->size + n > MAX_BYTES) break;
        memmove(in->at + from + n, in->at + from, in->size - from);
        in->size += n;
        break;
    default:
        if (n > in->size - to) n = in->size - to;
        memmove(in->at + to, in->at + from, n);
    }
}

static void run_input(uint64_t seed, uint64_t index, const Input *file, int files)
{
    static uint8_t bytes[MAX_BYTES];
    const Random r = random_named(seed, "mutate");
    uint64_t next = index << 16; /* an input draws fewer numbers than that */
    const Input *of = &file[draw(&r, &next, (uint64_t)files)];
    Input in = {bytes, of->size};
    memcpy(bytes, of->at, of->size);
    for (uint64_t n = 1 + draw(&r, &next, MAX_EDITS); n > 0; n--) edit(&r, &next, &in);
    uint8_t *exact = malloc(in.size ? in.size : 1); /* a sanitizer sees a read past its end */
    if (!exact) abort();
    memcpy(exact, bytes, in.size);
    current = (sig_atomic_t)index;
    (void)LLVMFuzzerTestOneInput(exact, in.size);
    free(exact);
}

static int read_file(const char *path, Input *out)
{
    FILE *f = fopen(path, "rb");
    out->at = malloc(MAX_BYTES);
    out->size = f && out->at ? fread(out->at, 1, MAX_BYTES, f) : 0;
    if (f) fclose(f);
    if (f) return 0;
    fprintf(stderr, "%s: cannot be read\n", path);
    return 1;
}

int main(int argc, char **argv)
{
    static Input file[MAX_FILES];
    const int files = argc - 3;
    if (files < 1 || files > MAX_FILES) {
        fprintf(stderr, "%s SEED COUNT|+INDEX FILE...   up to %d files\n", argv[0], MAX_FILES);
        return 2;
    }
    for (int i = 0; i < files; i++)
        if (read_file(argv[3 + i], &file[i])) return 2;
    repeat[0] = argv[0], repeat[1] = argv[1];
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(print_repeat);
    else
        for (int i = 0; i < 4; i++) signal(faults[i], on_fault);
    signal(SIGABRT, on_fault);
    signal(SIGALRM, on_fault);
    const uint64_t seed = strtoull(argv[1], NULL, 10), number = strtoull(argv[2], NULL, 10);
    const bool one = argv[2][0] == '+';
    const uint64_t first = one ? number : 0, end = one ? number + 1 : number;
    for (uint64_t i = first; i < end; i++) {
        alarm(20); /* an input that takes this long is a fault, too */
        run_input(seed, i, file, files);
    }
    printf("%s: %llu inputs of seed %s, no fault\n", argv[0], (unsigned long long)(end - first),
           argv[1]);
    return 0;
}
