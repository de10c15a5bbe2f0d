/* rope.h -- how fast each pair of channels turns. One formula for all devices: what it is tested
 * against is not ours (tests/golden). */
#ifndef DEVICE_ROPE_H
#define DEVICE_ROPE_H

#include "device/device.h"

/* Local. Radians per position of pair i of a head of so many channels. */
double rope_frequency(const Attr *attr, int64_t i, int64_t channels);

#endif
