/* rope.h -- the rotary frequency of each pair of channels. All devices share this formula; it is
 * tested against values computed by another library (tests/golden). */
#ifndef DEVICE_ROPE_H
#define DEVICE_ROPE_H

#include "device/device.h"

/* Local. Radians per position of pair i of a head with `channels` channels. */
double rope_frequency(const Attr *attr, int64_t i, int64_t channels);

#endif
