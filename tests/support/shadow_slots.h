/* shadow_slots.h -- the functions that fill the slots of device/runtime.h, which has the
 * contracts. */
#ifndef SUPPORT_SHADOW_SLOTS_H
#define SUPPORT_SHADOW_SLOTS_H

#include "support/shadow_parts.h"

/* shadow_context.c */
int shadow_devices(void);
Err shadow_open(int ordinal, DeviceContext **out);
void shadow_close(DeviceContext *c);
DeviceQueue *shadow_queue(DeviceContext *c, Queue queue);
Err shadow_identify(int ordinal, uint64_t *out);
Err shadow_queue_open(DeviceContext *c, DeviceQueue **out);
void shadow_queue_close(DeviceQueue *q);
Err shadow_native(DeviceQueue *q, void **out);
Err shadow_info(DeviceContext *c, DeviceInfo *out);
Err shadow_alloc_in(DeviceContext *c, size_t bytes, void **out);
void shadow_free_in(DeviceContext *c, void *at);
Err shadow_alloc_host(DeviceContext *c, size_t bytes, void **out);
void shadow_free_host(DeviceContext *c, void *at);

/* shadow_events.c */
Err shadow_timestamps_open(DeviceContext *c, int n, DeviceTimestamps **out);
void shadow_timestamps_close(DeviceTimestamps *m);
Err shadow_timestamp(DeviceQueue *q, DeviceTimestamps *m, int i);
Err shadow_timestamps_read(const DeviceTimestamps *m, int n, double *seconds);
Err shadow_event_open(DeviceContext *c, DeviceEvent **out);
void shadow_event_close(DeviceEvent *e);
Err shadow_record(DeviceQueue *q, DeviceEvent *e);
Err shadow_wait(DeviceQueue *q, DeviceEvent *e);
Err shadow_done(DeviceEvent *e, bool *out);
Err shadow_sync_event(DeviceEvent *e);
Err shadow_sync(DeviceQueue *q);

/* shadow_puts.c. shadow_kernel serves every row of kernels.def. */
Err shadow_kernel(KernelId id, const Call *call);
Err shadow_copy(DeviceQueue *q, void *to, const void *from, size_t bytes);
Err shadow_fill(DeviceQueue *q, void *to, int byte, size_t bytes);
Err shadow_squares_open(DeviceContext *c, const SquaresPiece *piece, int n, void *memory,
                        DeviceList **out);
Err shadow_update_open(DeviceContext *c, const UpdatePiece *piece, int n, void *memory,
                       DeviceList **out);
Err shadow_squares_run(DeviceQueue *q, const DeviceList *l);
Err shadow_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers);
void shadow_list_close(DeviceList *l);
Err shadow_clip(DeviceQueue *q, const DeviceClip *c);
Err shadow_put_fold(DeviceQueue *q, const DeviceFold *f);

#endif
