/* device_rows.h -- the layouts in which ranks on devices are tested. */
#ifndef SUPPORT_DEVICE_ROWS_H
#define SUPPORT_DEVICE_ROWS_H

#include "support/world.h"

typedef struct {
    const char *name, *model, *schedule;
    int dp, tp, pp, zero, micros, layers; /* layers 0: the model's */
    int cp, cp_heads, cp_inner, ep, etp;
    TokenMap tokens;
    ContextKind context;
    int clips; /* dims of a model of clips (support/clips.h); 0: `model`, of text */
    bool each, sequence, split, validate, evict, sgd, in_order;
    bool stream; /* weights travel over cp */
    bool rounds; /* rooms for half of the even share; the other rows of experts take rounds */
    const char *offload;
    DType dtype;
} DeviceRow;

extern const DeviceRow device_rows[];
extern const int n_device_rows;

/* Local. The row as a world on `device`; *config is the model's, with the row's layer count. */
World device_world(const DeviceRow *row, const Device *device, ModelConfig *config);

#endif
