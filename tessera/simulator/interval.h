#pragma once

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

/// The seconds of an iteration as they come out when computation varies.
struct TimeInterval {
  double low = 0; // of the draws, a share (1 - coverage) / 2 takes less
  double median = 0;
  double high = 0; // and as many take longer
};

/// Simulates an iteration `draws` times, with seeds from SimulationOptions::seed on, and returns in
/// which interval a share `coverage` of them lies. Without jitter all three are equal and it is
/// simulated once. What an estimate gets wrong always, in every draw alike, is no part of it.
/// Cost: `draws` simulations. Threads: any.
/// Throws: ConfigError as simulate, for less than one draw and for a coverage outside of 0 .. 1.
TimeInterval simulate_interval(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    SimulationOptions options,
    int draws,
    double coverage = 0.9);

/// How often devices fail, and what a failure costs. Units: seconds.
struct Failures {
  double device_mean_time = 0; // between two failures of one device
  double checkpoint_seconds = 0; // to write one
  double restart_seconds = 0; // until a job that failed trains again
  double steps_between_checkpoints = 1;
};

/// Returns the expected seconds of one step of a job that starts again at its last checkpoint
/// whenever one of `devices` fails: failures are independent and may come at any time, also while a
/// checkpoint is written or the job starts again.
/// Throws: ConfigError for a figure that is not a number of 0 or more, or a mean time or an
/// interval that is 0.
/// Source: Daly 2006, A higher order estimate of the optimum checkpoint interval, section 3.
double seconds_with_failures(double step_seconds, int devices, const Failures& failures);

/// Returns how many steps between checkpoints make that time least, at least 1.
double best_checkpoint_interval(double step_seconds, int devices, const Failures& failures);

} // namespace tessera::simulator
