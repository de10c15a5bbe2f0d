/* simulate.h -- what `sheaf simulate` says: one simulation, printed for people or as JSON. */
#ifndef CLI_SIMULATE_H
#define CLI_SIMULATE_H

#include "base/text.h"
#include "plan/simulate.h"
#include "job/job.h"

typedef struct {
    const JobSettings *settings;
    const Mesh *mesh;
    int64_t parameters;
    Simulation all;
} Simulated;

/* Local. The row of that kind and axes in a rank's table, or NULL: it sends none. */
const TrafficRow *traffic_row(const Traffic *s, const TrafficRow *like);
/* Local. "all-gather"; "scalars" for what ranks tell each other at the end of a step. */
const char *traffic_kind_text(const TrafficRow *row);

/* Local. For people, and as one object with keys in a fixed order. */
void simulate_text(const Simulated *s, Text *out);
Err simulate_json(const Simulated *s, Text *out);

#endif
