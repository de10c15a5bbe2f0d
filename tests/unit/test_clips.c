/* test_clips.c -- clips of latents: files of numpy and safetensors, damaged ones, patches, noise
 * and targets, rows that other ranks hold, and the paths of moving shapes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/dataset.h"
#include "data/moving_shapes.h"
#include "state/clip_open.h"
#include "state/npy.h"
#include "support/expect.h"
#include "support/bytes.h"

static Arena arena;

/* 5 frames of 4 x 6 latents of 2 channels; a token is 2 x 2 of them. */
static ModelConfig model_of(int64_t frames, int64_t text_length)
{
    ModelConfig c = {.name = "clips", .frames = frames, .places = 6};
    c.clip = (ClipConfig){.height = 4, .width = 6, .channels = 2, .patch = 2, .dims = 2};
    c.clip.text_length = text_length;
    c.clip.text_width = text_length ? 3 : 0;
    c.max_positions = frames * c.places;
    return c;
}

/* Element i of a file is i, scaled so that f16 has it exactly. */
static const char *write_npy(const char *name, int ndim, const int64_t *n)
{
    static char path[4][1024];
    static int next;
    char *to = path[next++ % 4];
    NpyWriter w;
    int64_t count = 1;
    snprintf(to, 1024, "%s", scratch_text(name, ""));
    for (int i = 0; i < ndim; i++) count *= n[i];
    DO(npy_create(&w, to, ndim, n));
    for (int64_t i = 0; i < count; i++) DO(npy_write(&w, &(float){(float)i / 64}, 1));
    DO(npy_close(&w));
    return to;
}

static void windows_and_patches(void **state)
{
    (void)state;
    const ModelConfig c = model_of(2, 0);
    OpenClips f;
    float patch[8];
    DO(clip_open(write_npy("a.npy", 5, (const int64_t[]){3, 5, 4, 6, 2}), &arena, &f));
    DO(clip_file_check(&f.clips, &c));
    assert_int_equal(clip_file_samples(&f.clips, &c), 6); /* two of each clip; a frame is left */
    for (int64_t i = 0; i < 6; i++)
        for (int64_t token = 0; token < 12; token++) {
            const ClipSample s = clip_sample(&f.clips, &c, i);
            const int64_t frame = i / 2 * 5 + i % 2 * 2 + token / 6, row = token % 6 / 3 * 2,
                          column = token % 3 * 2;
            clip_sample_patch(&s, token, patch);
            for (int e = 0; e < 8; e++) {
                const int64_t at = ((frame * 4 + row + e / 4) * 6 + column + e / 2 % 2) * 2 + e % 2;
                assert_true(patch[e] == (float)at / 64);
            }
        }
    clip_close(&f);
}

static void refused(Err err, Err want, const char *word)
{
    if (err != want || !strstr(err_text(), word)) fail_msg("%d: %s", (int)err, err_text());
}

static void files_that_do_not_fit(void **state)
{
    (void)state;
    OpenClips f;
    ModelConfig c = model_of(2, 0);
    refused(clip_open(write_npy("flat.npy", 2, (const int64_t[]){3, 5}), &arena, &f), ERR_CONFIG,
            "frames, height, width, channels");
    const char *path = write_npy("b.npy", 4, (const int64_t[]){3, 4, 6, 2});
    DO(clip_open(path, &arena, &f));
    assert_int_equal(clip_file_samples(&f.clips, &c), 1);
    c.clip.height = 8;
    refused(clip_file_check(&f.clips, &c), ERR_CONFIG, "model.latent_height=4");
    c = model_of(4, 0);
    refused(clip_file_check(&f.clips, &c), ERR_CONFIG, "model.num_frames=3");
    c = model_of(2, 5);
    refused(clip_file_check(&f.clips, &c), ERR_CONFIG, ".text.npy");
    clip_close(&f);
    (void)write_npy("b.text.npy", 2, (const int64_t[]){5, 3});
    DO(clip_open(path, &arena, &f));
    DO(clip_file_check(&f.clips, &c));
    c.clip.text_length = 4;
    refused(clip_file_check(&f.clips, &c), ERR_CONFIG, "states");
    clip_close(&f);
}

static Err parse(const void *bytes, size_t n, StTensor *t)
{
    return npy_parse("x.npy", (Bytes){bytes, n}, t);
}

/* A whole file with another header text, its shape of 24 bytes of data. */
static Err parse_header(const char *header, size_t data)
{
    static unsigned char file[512];
    StTensor t;
    const size_t n = strlen(header);
    memset(file, 0, sizeof file);
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (unsigned char)n;
    memcpy(file + 10, header, n);
    return parse(file, 10 + n + data, &t);
}

static void damaged_files(void **state)
{
    (void)state;
    const char *path = write_npy("whole.npy", 4, (const int64_t[]){1, 2, 3, 1});
    unsigned char file[512];
    FILE *in = fopen(path, "rb");
    const size_t n = fread(file, 1, sizeof file, in);
    StTensor t;
    fclose(in);
    assert_int_equal(n, 128 + 24);
    DO(parse(file, n, &t));
    assert_int_equal(t.ndim, 4);
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(parse(file, cut, &t), ERR_CHECK);
    DO(parse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24));
    DO(parse_header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", 24));
    refused(parse_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 24),
            ERR_CONFIG, "Fortran");
    refused(parse_header("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }", 24),
            ERR_CONFIG, "float32");
    refused(parse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", 24),
            ERR_CHECK, "cut short");
    refused(parse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", 24),
            ERR_CHECK, "shape");
    refused(parse_header("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999, "
                         "99999999999), }",
                         24),
            ERR_CHECK, "shape");
    refused(parse_header("{'descr': '<f4', 'fortran_order': False, }", 24), ERR_CHECK, "shape");
}

/* Latents in f16 and texts in f32, in one file: 4 numbers each, and a frame of 1 x 2 of 1. */
static void safetensors(void **state)
{
    (void)state;
    StTensor tensor[] = {
        {.name = "latents", .type = ST_F16, .ndim = 4, .n = {2, 1, 2, 1}, .bytes = 8},
        {.name = "text", .type = ST_F32, .ndim = 2, .n = {1, 3}, .at = 8, .bytes = 12}};
    const uint16_t halves[4] = {0x3C00, 0xC000, 0x0000, 0x3555}; /* 1, -2, 0, about 1/3 */
    const float text[3] = {1.5f, -2.25f, 8}, want[4] = {1, -2, 0, 0.333251953125f};
    const char *head, *path = scratch_text("clips.safetensors", "");
    size_t bytes;
    OpenClips f;
    float x[4];
    for (int n = 1; n <= 2; n++) {
        StFile file = {.path = path, .n = n, .tensor = tensor, .data_bytes = n == 1 ? 8 : 20};
        DO(st_header(&file, &arena, &head, &bytes));
        FILE *out = fopen(path, "wb");
        fwrite(head, 1, bytes, out);
        fwrite(halves, 1, sizeof halves, out);
        if (n == 2) fwrite(text, 1, sizeof text, out);
        fclose(out);
        DO(clip_open(path, &arena, &f));
        f.clips.latents.read(&f.clips.latents, 0, 4, x);
        assert_memory_equal(x, want, sizeof x);
        assert_int_equal(f.clips.text.ndim, n == 2 ? 2 : 0);
        if (n == 2) f.clips.text.read(&f.clips.text, 1, 2, x);
        if (n == 2) assert_memory_equal(x, text + 1, 2 * sizeof *x);
        clip_close(&f);
    }
    tensor[0].name = "video";
    StFile other = {.path = path, .n = 1, .tensor = tensor, .data_bytes = 8};
    DO(st_header(&other, &arena, &head, &bytes));
    FILE *out = fopen(path, "wb");
    fwrite(head, 1, bytes, out);
    fwrite(halves, 1, sizeof halves, out);
    fclose(out);
    refused(clip_open(path, &arena, &f), ERR_CONFIG, "no tensor `latents`");
}

/* The inputs of two clips of 2 frames, in f64. */
typedef struct {
    int32_t clips[24], frames[24], positions[24], text_ranges[24][4];
    double noised[24][8], velocity[24][8], times[2], weights[24], text[2][5][3];
} Inputs;

static ClipRows rows_of(Inputs *in, const HeldSpans *held)
{
    memset(in, 0xff, sizeof *in); /* NaN */
    return (ClipRows){.at = {[INPUT_CLIPS] = in->clips,
                             [INPUT_FRAMES] = in->frames,
                             [INPUT_POSITIONS] = in->positions,
                             [INPUT_TEXT_RANGES] = in->text_ranges,
                             [INPUT_NOISED] = in->noised,
                             [INPUT_VELOCITY] = in->velocity,
                             [INPUT_TIMES] = in->times,
                             [INPUT_WEIGHTS] = in->weights,
                             [INPUT_TEXT] = in->text},
                      .wide = F64,
                      .held = held};
}

static Dataset open_set(const ModelConfig *c, const ClipFile *file, uint64_t seed)
{
    static const char *path[1];
    Dataset d;
    path[0] = file->path;
    const DatasetSettings set = {.path = path,
                                 .n_paths = 1,
                                 .seq_len = c->max_positions,
                                 .seed = seed,
                                 .clip_file = file,
                                 .model = c};
    DO(dataset_open(&set, &arena, &d));
    return d;
}

/* noised = (1 - t) x0 + t noise and velocity = noise - x0, so x0 = noised - t velocity. */
static void noise_and_targets(void **state)
{
    (void)state;
    static Inputs in, again, other;
    const ModelConfig c = model_of(2, 5);
    OpenClips f;
    double sum = 0, squares = 0;
    (void)write_npy("n.text.npy", 3, (const int64_t[]){3, 5, 3});
    DO(clip_open(write_npy("n.npy", 5, (const int64_t[]){3, 5, 4, 6, 2}), &arena, &f));
    Dataset d = open_set(&c, &f.clips, 7), e = open_set(&c, &f.clips, 8);
    assert_int_equal(d.n_samples, 6);
    const ClipRows rows = rows_of(&in, NULL), twice = rows_of(&again, NULL),
                   seeded = rows_of(&other, NULL);
    for (int clip = 0; clip < 2; clip++) {
        DO(dataset_fill_clip(&d, 4 + clip, &rows, clip));
        DO(dataset_fill_clip(&d, 4 + clip, &twice, clip));
        DO(dataset_fill_clip(&e, 4 + clip, &seeded, clip));
        const int64_t sample = dataset_sample(&d, 4 + clip);
        const ClipSample s = clip_sample(&f.clips, &c, sample);
        assert_true(in.times[clip] >= 0 && in.times[clip] < 1);
        for (int t = 0; t < 12; t++) {
            const int row = clip * 12 + t;
            float x0[8];
            clip_sample_patch(&s, t, x0);
            assert_int_equal(in.clips[row], clip);
            assert_int_equal(in.frames[row], t / 6);
            assert_int_equal(in.positions[row], t % 6);
            assert_int_equal(in.text_ranges[row][0], clip * 5);
            assert_int_equal(in.text_ranges[row][1], clip * 5 + 5);
            assert_true(in.weights[row] == 1);
            for (int i = 0; i < 8; i++) {
                const double noise = in.velocity[row][i] + (double)x0[i];
                assert_true(fabs(in.noised[row][i] - in.times[clip] * in.velocity[row][i] -
                                 (double)x0[i]) < 1e-12);
                sum += noise;
                squares += noise * noise;
            }
        }
        for (int i = 0; i < 15; i++)
            assert_true(in.text[clip][i / 3][i % 3] == (double)((float)(sample / 2 * 15 + i) / 64));
    }
    assert_true(fabs(sum / 192) < 0.3 && fabs(squares / 192 - 1) < 0.4); /* 4 deviations */
    assert_memory_equal(&in, &again, sizeof in);
    assert_true(memcmp(in.noised, other.noised, sizeof in.noised) != 0);
    assert_true(in.times[0] != in.times[1]);               /* of each sample of the run */
    DO(dataset_fill_clip(&d, 4 + d.n_samples, &twice, 0)); /* the next epoch: other noise */
    assert_true(again.times[0] != in.times[0]);
    clip_close(&f);
}

/* A rank with some rows has those of all rows. */
static void rows_of_a_rank(void **state)
{
    (void)state;
    static Inputs all, some;
    static const Span span[] = {{3, 9, 1}, {14, 24, 3}};
    const ModelConfig c = model_of(2, 0);
    HeldSpans held[N_INPUTS];
    OpenClips f;
    for (int i = 0; i < N_INPUTS; i++) held[i] = held_all(24);
    held[INPUT_NOISED] = held[INPUT_WEIGHTS] = held[INPUT_FRAMES] = (HeldSpans){span, 2, 0, 6 + 4};
    DO(clip_open(write_npy("r.npy", 4, (const int64_t[]){5, 4, 6, 2}), &arena, &f));
    Dataset d = open_set(&c, &f.clips, 3);
    const ClipRows whole = rows_of(&all, NULL), part = rows_of(&some, held);
    for (int clip = 0; clip < 2; clip++) {
        DO(dataset_fill_clip(&d, clip, &whole, clip));
        DO(dataset_fill_clip(&d, clip, &part, clip));
    }
    for (int i = 0; i < 10; i++) {
        const int row = i < 6 ? 3 + i : 14 + (i - 6) * 3;
        assert_memory_equal(some.noised[i], all.noised[row], sizeof some.noised[i]);
        assert_int_equal(some.frames[i], all.frames[row]);
    }
    assert_true(isnan(some.noised[10][0]) && isnan(some.weights[10]));
    assert_memory_equal(some.velocity, all.velocity, sizeof all.velocity);
    clip_fill_padding(&c, &whole, 1);
    for (int row = 12; row < 24; row++)
        assert_true(all.weights[row] == 0 && all.noised[row][3] == 0 && all.velocity[row][5] == 0);
    assert_true(all.weights[11] == 1);
    clip_close(&f);
}

/* Patches in the order of tokens are joined to frames: the inverse of clip_sample_patch. */
static void joined_again(void **state)
{
    (void)state;
    const ModelConfig c = model_of(3, 0);
    double patches[18 * 8];
    float frames[18 * 8];
    OpenClips f;
    DO(clip_open(write_npy("j.npy", 4, (const int64_t[]){3, 4, 6, 2}), &arena, &f));
    const ClipSample s = clip_sample(&f.clips, &c, 0);
    for (int t = 0; t < 18; t++) {
        float x[8];
        clip_sample_patch(&s, t, x);
        for (int i = 0; i < 8; i++) patches[t * 8 + i] = (double)x[i];
    }
    clip_join(&c, patches, frames);
    for (int i = 0; i < 18 * 8; i++) assert_true(frames[i] == (float)i / 64);
    clip_close(&f);
}

/* The mass of a frame and its center. */
static double center(const float *frame, int64_t height, int64_t width, double *y, double *x)
{
    double mass = 0;
    *y = *x = 0;
    for (int64_t i = 0; i < height * width; i++) {
        mass += (double)frame[i];
        *y += (double)frame[i] * (double)(i / width);
        *x += (double)frame[i] * (double)(i % width);
    }
    *y /= mass;
    *x /= mass;
    return mass;
}

static void shapes_move(void **state)
{
    (void)state;
    const MovingShapes s = {.frames = 7, .height = 12, .width = 14, .channels = 1, .seed = 5};
    float clip[7 * 12 * 14], same[7 * 12 * 14];
    int directions = 0;
    DO(moving_shapes_check(&s));
    for (int64_t i = 0; i < 64; i++) {
        double y[7], x[7];
        moving_shapes_clip(&s, i, clip);
        moving_shapes_clip(&s, i, same);
        assert_memory_equal(clip, same, sizeof clip);
        for (int f = 0; f < 7; f++) {
            const double mass = center(clip + f * 12 * 14, 12, 14, &y[f], &x[f]);
            assert_true(mass > 0.85 * 4 * 3.14159 && mass < 4 * 3.1416); /* all within the frame */
            if (f > 0) assert_true(fabs(hypot(y[f] - y[f - 1], x[f] - x[f - 1]) - 1) < 0.15);
        }
        directions |= 1 << (2 * (fabs(y[6] - y[0]) > 3) + (y[6] + x[6] > y[0] + x[0]));
    }
    assert_int_equal(directions, 15);
    assert_int_equal(moving_shapes_check(&(MovingShapes){4, 3, 8, 1, 1}), ERR_CONFIG);
}

static int setup(void **state)
{
    (void)state;
    return arena_open(&arena, "clips", ARENA_PLENTY) == OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_patches), cmocka_unit_test(files_that_do_not_fit),
        cmocka_unit_test(damaged_files),       cmocka_unit_test(safetensors),
        cmocka_unit_test(noise_and_targets),   cmocka_unit_test(rows_of_a_rank),
        cmocka_unit_test(joined_again),        cmocka_unit_test(shapes_move),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
