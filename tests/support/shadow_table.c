/* shadow_table.c -- the runtime table of the shadow device, and its autotuner, which has nothing to
 * choose. */
#include <stdio.h>
#include <string.h>

#include "support/shadow_slots.h"

static int candidates;

void shadow_set_candidates(int gemms) { candidates = gemms; }

static int autotune_left(const DeviceContext *c)
{
    (void)c;
    return candidates;
}

static void switched(DeviceContext *c, bool on)
{
    (void)c;
    (void)on;
}

/* The whole content of its file. */
static const char autotune_text[] = "shadow autotune\n";

static Err autotune_save(DeviceContext *c, const char *path)
{
    (void)c;
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written", path);
    fputs(autotune_text, f);
    fclose(f);
    return OK;
}

static Err autotune_load(DeviceContext *c, const char *path)
{
    char text[64] = "";
    (void)c;
    FILE *f = fopen(path, "r");
    if (!f) return err_fail(ERR_IO, "%s: cannot be read", path);
    const bool same = fgets(text, sizeof text, f) && strcmp(text, autotune_text) == 0;
    fclose(f);
    return same ? OK : err_fail(ERR_CONFIG, "%s: written by another device", path);
}

static const DeviceLists shadow_lists = {
    .squares_shape = {sizeof(SquaresPiece), 4096},
    .update_shape = {sizeof(UpdatePiece), 1024},
    .squares_open = shadow_squares_open,
    .squares_run = shadow_squares_run,
    .update_open = shadow_update_open,
    .update_run = shadow_update_run,
    .list_close = shadow_list_close,
    .clip = shadow_clip,
};

static const DeviceGraphs shadow_graphs = {
    .capture_begin = shadow_capture_begin,
    .capture_end = shadow_capture_end,
    .graph_run = shadow_graph_run,
    .graph_fits = shadow_graph_fits,
    .graph_close = shadow_graph_close,
};

static const DeviceAutotune shadow_autotune = {
    .measure = switched,
    .left = autotune_left,
    .save = autotune_save,
    .load = autotune_load,
};

static const DeviceRuntime shadow_runtime = {
    .count = shadow_devices,
    .open = shadow_open,
    .close = shadow_close,
    .queue = shadow_queue,
    .info = shadow_info,
    .identify = shadow_identify,
    .queue_open = shadow_queue_open,
    .queue_close = shadow_queue_close,
    .native = shadow_native,
    .alloc = shadow_alloc_in,
    .free = shadow_free_in,
    .alloc_host = shadow_alloc_host,
    .free_host = shadow_free_host,
    .copy = shadow_copy,
    .set = shadow_fill,
    .event_open = shadow_event_open,
    .event_close = shadow_event_close,
    .record = shadow_record,
    .wait = shadow_wait,
    .done = shadow_done,
    .sync_event = shadow_sync_event,
    .sync = shadow_sync,
    .timestamps_open = shadow_timestamps_open,
    .timestamps_close = shadow_timestamps_close,
    .timestamp = shadow_timestamp,
    .timestamps_read = shadow_timestamps_read,
    .fold = shadow_put_fold,
    .deterministic = switched,
    .lists = &shadow_lists,
    .graphs = &shadow_graphs,
    .autotune = &shadow_autotune,
};

#define KERNEL(id)                                                                                 \
    static Err put_##id(const Call *call) { return shadow_kernel(KERNEL_##id, call); }
#include "device/kernels.def"
#undef KERNEL

const Device device_shadow = {
    .name = "shadow",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = put_##id,
#include "device/kernels.def"
#undef KERNEL
        },
    .runtime = &shadow_runtime,
};

Device shadow_without(bool lists, bool graphs, bool autotune, DeviceRuntime *runtime)
{
    Device d = device_shadow;
    *runtime = shadow_runtime;
    if (lists) runtime->lists = NULL;
    if (graphs) runtime->graphs = NULL;
    if (autotune) runtime->autotune = NULL;
    d.runtime = runtime;
    return d;
}
