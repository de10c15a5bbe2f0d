/* simulate.h -- output of `sheaf simulate`: one simulation, as text or as JSON. */
#ifndef CLI_SIMULATE_SIMULATE_H
#define CLI_SIMULATE_SIMULATE_H

#include "base/text.h"
#include "plan/clock/clock.h"
#include "plan/simulate.h"
#include "job/job.h"

typedef struct {
    const JobSettings *settings;
    const Mesh *mesh;
    int64_t parameters;
    Simulation all;
    const Cluster *cluster; /* NULL: time is not predicted */
    StepTime time;
} SimulationReport;

/* Local. mfu: model flops over the peak of all devices, each times its speed; negative if the
 * cluster gives no peak. */
double simulated_mfu(const SimulationReport *s);
/* The rank that needs most beyond the memory of its device. Host memory does not count. */
typedef struct {
    int rank;
    double bytes, limit_bytes; /* bytes <= limit_bytes: each rank fits */
} SimulatedFit;
SimulatedFit simulated_fit(const SimulationReport *s);
void simulate_time_text(const SimulationReport *s, Text *out); /* time.c */

/* Local. Play the step again and write it to a new file: as a timeline, as a picture. */
Err simulate_trace(const SimulationReport *s, StepClock *clock, const char *path, Arena *temp);
Err simulate_svg(const SimulationReport *s, StepClock *clock, const char *path, Arena *temp);

/* Local. As text for people; as one JSON object with keys in a fixed order. */
void simulate_text(const SimulationReport *s, Text *out);
Err simulate_json(const SimulationReport *s, Text *out);

#endif
