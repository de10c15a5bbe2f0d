/* attention_memory.c -- blocked attention needs memory in proportion to tokens, not to their
 * square.
 *
 * For growing T: one layer of a small llama, forward and backward on `ref`, causal. The work arena
 * has the size that linking predicted, and nothing else is allocated: the resident memory of the
 * process without its arenas is printed too. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/job.h"
#include "support/clock.h"

typedef struct {
    size_t work, arenas;
    double seconds;
} Measured;

static void fill_inputs(Rank *r, int32_t T)
{
    for (int32_t i = 0; i < T; i++) {
        ((int32_t *)rank_input(r, 0, INPUT_TOKENS).data)[i] = i * 7 % 251;
        ((int32_t *)rank_input(r, 0, INPUT_TARGETS).data)[i] = i * 5 % 251;
        ((int32_t *)rank_input(r, 0, INPUT_POSITIONS).data)[i] = i;
        ((float *)rank_input(r, 0, INPUT_WEIGHTS).data)[i] = 1;
        const int32_t range[4] = {0, i + 1, 0, 0};
        memcpy((int32_t *)rank_input(r, 0, INPUT_RANGES).data + 4 * i, range, sizeof range);
    }
}

static Err run_layer(int32_t T, Measured *out)
{
    static const ModelField sizes[] = {{"num_hidden_layers", "1", "bench", 2},
                                       {"hidden_size", "32", "bench", 2},
                                       {"num_attention_heads", "2", "bench", 2},
                                       {"num_key_value_heads", "1", "bench", 2},
                                       {"head_dim", "16", "bench", 2},
                                       {"intermediate_size", "32", "bench", 2},
                                       {"max_position_embeddings", "8192", "bench", 2}};
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    StepResult result;
    Team *team;
    TRY(arena_open(&arena, "bench", ARENA_PLENTY));
    TRY(model_config_load("llama-tiny", sizes, 7, &arena, &config));
    const JobSettings set = {.kind = JOB_GRADIENTS,
                             .config = &config,
                             .dtype = F32,
                             .batch = {1, T},
                             .micros = 1,
                             .schedule = "1f1b",
                             .compile = {.chunk_elements = 1 << 16},
                             .optim = {.block = 65536}};
    TRY(job_compile(&set, &arena, &job));
    TRY(team_open(&team, 2, NULL));
    TRY(job_open_rank(&job, NULL, team, &rank));
    TRY(rank_init_weights(&rank, 1));
    fill_inputs(&rank, T);
    const double start = now_s();
    TRY(rank_step(&rank, &(StepSettings){.step = 1, .lr = 0}, &result));
    out->seconds = now_s() - start;
    out->work = job.linked.bytes[ARENA_WORK];
    for (int a = 0; a < N_ARENAS; a++) out->arenas += job.linked.bytes[a];
    team_close(team);
    return OK;
}

/* Runs in a child process, so that the peak memory is that of one T. */
static int measure(int32_t T)
{
    int pipe_fd[2];
    Measured m = {0};
    struct rusage use;
    if (pipe(pipe_fd) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) {
        const Err err = run_layer(T, &m);
        if (err != OK) fprintf(stderr, "%s\n", err_text());
        const ssize_t sent = write(pipe_fd[1], &m, sizeof m);
        _exit(err != OK || sent != sizeof m);
    }
    const ssize_t got = read(pipe_fd[0], &m, sizeof m);
    int status;
    wait4(child, &status, 0, &use);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    if (got != sizeof m || status != 0) return 1;
    const double scores = 4.0 * 2 * T * (double)T;
    printf("%6d  %10.1f  %12.1f  %14.1f  %12.1f  %8.2f\n", T, (double)m.work / 1024,
           (double)m.work / T, (double)(use.ru_maxrss * 1024L - (long)m.arenas) / 1024,
           scores / 1024, m.seconds);
    return 0;
}

int main(void)
{
    printf("blocked attention: one layer, forward and backward, causal, 2 heads of 16, f32, ref\n");
    printf("tokens  work (KiB)  bytes/token  all else (KiB)  scores (KiB)   seconds\n");
    fflush(stdout);
    for (int32_t T = 1024; T <= 8192; T *= 2) {
        if (measure(T)) return 1;
        fflush(stdout);
    }
    printf("work: arena of frames, streams and scratch. scores: the score matrix, if it were "
           "stored.\n");
    return 0;
}
