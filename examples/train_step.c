/* train_step.c -- the library on one page: compiles a model, opens it on a rank and trains it.
 *
 *     build/release/examples/train_step [FILE]      trains on the bytes of FILE (README.md)
 *
 *     model_config_load   a preset                           the model
 *     job_compile         programs, action list, offsets     everything that a step executes
 *     job_open_rank       memory of exactly that size        no allocation later
 *     rank_step           runs the action list               one training step */
#include <stdio.h>

#include "base/team.h"
#include "base/text.h"
#include "job/job.h"

enum { STEPS = 40, MICROS = 2, SEQUENCES = 8, SEQ_LEN = 64, THREADS = 2 };

/* The training text, and the position of the next byte. */
typedef struct {
    const char *text;
    size_t length, at;
} Reader;

static Err reader_open(Reader *r, const char *path, Arena *arena)
{
    if (path)
        TRY(text_read_file(path, (size_t)1 << 30, arena, &r->text, &r->length));
    else if (text_read_file("README.md", (size_t)1 << 30, arena, &r->text, &r->length) != OK)
        TRY(text_read_file(__FILE__, (size_t)1 << 30, arena, &r->text, &r->length));
    if (r->length > SEQ_LEN) return OK;
    return err_fail(ERR_CONFIG, "%zu bytes are fewer than a sequence; give a longer file",
                    r->length);
}

/* Fills one sequence of SEQ_LEN bytes. The target of each byte is the next one. `ranges` holds the
 * keys that a token attends to: rows [lo, hi) of the micro-batch, here from the start of the
 * sequence to the token itself, and a second range that is empty here. */
static void read_sequence(Reader *r, Rank *rank, int micro, int64_t sequence)
{
    int32_t *tokens = rank_input(rank, micro, INPUT_TOKENS).data;
    int32_t *targets = rank_input(rank, micro, INPUT_TARGETS).data;
    int32_t *positions = rank_input(rank, micro, INPUT_POSITIONS).data;
    int32_t(*ranges)[4] = rank_input(rank, micro, INPUT_RANGES).data;
    float *weights = rank_input(rank, micro, INPUT_WEIGHTS).data;
    if (r->at + SEQ_LEN >= r->length) r->at = 0;
    for (int64_t i = 0; i < SEQ_LEN; i++) {
        const int64_t row = sequence * SEQ_LEN + i;
        tokens[row] = (unsigned char)r->text[r->at++];
        targets[row] = (unsigned char)r->text[r->at];
        positions[row] = (int32_t)i;
        ranges[row][0] = (int32_t)(sequence * SEQ_LEN);
        ranges[row][1] = (int32_t)(row + 1);
        ranges[row][2] = ranges[row][3] = 0;
        weights[row] = 1; /* weight of the token in the loss */
    }
}

static Err train(Reader *reader, Rank *rank)
{
    for (int step = 1; step <= STEPS; step++) {
        StepResult result;
        for (int micro = 0; micro < MICROS; micro++)
            for (int64_t s = 0; s < SEQUENCES; s++) read_sequence(reader, rank, micro, s);
        TRY(rank_step(rank, &(StepSettings){.step = step, .lr = 1e-2}, &result));
        printf("step %2d/%d  loss %.4f  gnorm %.3f\n", step, STEPS, result.loss, result.grad_norm);
    }
    return OK;
}

static Err run(const char *path, Arena *arena, Team *team)
{
    static Job job; /* the rank points into it */
    Reader reader = {0};
    ModelConfig config;
    Rank rank;
    TRY(reader_open(&reader, path, arena));
    TRY(model_config_load("llama-tiny", NULL, 0, arena, &config));
    const JobSettings settings = {
        .kind = JOB_STEP,
        .config = &config,
        .dtype = F32,
        .batch = {SEQUENCES, SEQ_LEN},
        .micros = MICROS,
        .schedule = "1f1b",
        .optim = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .block = 65536}};
    TRY(job_compile(&settings, arena, &job));
    TRY(job_open_rank(&job, NULL, team, &rank));
    rank_init_weights(&rank, 1);
    printf("%s: %lld parameters, %d tokens a step\n", config.name,
           (long long)model_param_count(&job.model), MICROS * SEQUENCES * SEQ_LEN);
    const Err err = train(&reader, &rank);
    rank_close(&rank);
    return err;
}

int main(int argc, char **argv)
{
    Arena arena;
    Team *team = NULL;
    Err err = arena_open(&arena, "example", ARENA_PLENTY);
    if (err == OK) err = team_open(&team, THREADS, NULL);
    if (err == OK) err = run(argc > 1 ? argv[1] : NULL, &arena, team);
    if (err != OK) fprintf(stderr, "train_step: %s\n", err_text());
    if (team) team_close(team);
    arena_close(&arena);
    return err != OK;
}
