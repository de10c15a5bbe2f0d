/* attr.h -- the attributes of an op, fixed when its unit is compiled.
 *
 * An op with a kernel has the attributes of that kernel (device/device.h), which run/ passes to the
 * device. Views, transfers and calls have attributes of their own, which no device reads. The op
 * decides which member is set. */
#ifndef IR_ATTR_H
#define IR_ATTR_H

#include "device/device.h"

typedef union {
    Attr kernel;
    struct {
        /* Of views with a product: extents of its second and third letter. `heads` and `merge`:
         * size is the channels of a head. */
        int64_t size, inner;
    } heads;
    struct {
        int64_t dim, from; /* `part` shows the elements from `from` on; `join` reads dim alone */
    } part;
    struct {
        int32_t index; /* of the table of transfer parts; of transfers and `pack` */
    } move;
    struct {
        int64_t region_bytes; /* memory that the sub-program may use */
        int32_t slot;         /* binding of the sub-program */
    } call;
    struct {
        int32_t body;   /* of the graph's, or the program's */
        int32_t merged; /* of rounds_dx: the body that makes the gradients of weights too */
        int64_t ep, room;
    } rounds;
} OpAttr;

#endif
