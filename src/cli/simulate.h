/* simulate.h -- output of `sheaf simulate`: one simulation, as text or as JSON. */
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
} SimulationReport;

/* Local. The row of the same kind and axes in a rank's table; NULL: the rank sends none. */
const TrafficRow *traffic_row(const Traffic *s, const TrafficRow *like);
/* Local. "all-gather"; "scalars" for the reductions of loss, norm and token counts. */
const char *traffic_kind_text(const TrafficRow *row);

/* Local. As text for people; as one JSON object with keys in a fixed order. */
void simulate_text(const SimulationReport *s, Text *out);
Err simulate_json(const SimulationReport *s, Text *out);

#endif
