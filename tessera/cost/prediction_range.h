#pragma once

#include <optional>

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"

namespace tessera::cost {

/// Between `low` and `high` a measured figure lies.
struct Range {
  double low = 0;
  double high = 0;
};

/// The share of the runs of which ranges are made that lies within them.
inline constexpr double kRangeShare = 0.9;

/// Returns in which range the measured seconds of an iteration lie that was estimated to take
/// `seconds`. The range is as wide as nine tenths of the residuals of stored runs, those between
/// the 5th and the 95th of a hundred:
///
/// - models of sizes: the finished runs of `bench/planner/published/runs_llama_1b.csv`;
/// - measured models: every other finished one of the AMP paper's homogeneous runs (decision 119);
/// - traced models on a probed cluster: every other run of
///   `bench/results/fidelity_2core_2026-11-27.md` and `..._28.md`, priced by the planner of that
///   day;
/// - traced models on a described cluster: as models of sizes, since data sheets price both.
///
/// How many runs of others lie within is in docs/planner.md and held by a test, which also makes
/// the widths anew from these rows (`tests/unit/accuracy/range_test.cpp`).
/// Threads: any. Source: Vovk et al. 2005, Algorithmic Learning in a Random World, section 2.2
/// (intervals from residuals).
Range seconds_range(const DescribedModel& model, const Cluster& cluster, double seconds);

/// Returns the same for the bytes of tensors on a device, from the memory that the runs of
/// `runs_llama_1b.csv` report. None for models that are not of sizes, since no stored run of
/// theirs reports its memory.
std::optional<Range> memory_range(const DescribedModel& model, double bytes);

} // namespace tessera::cost
