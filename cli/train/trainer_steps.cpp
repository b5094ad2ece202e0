// What the trainer measures of each step: where its time went, over all ranks.
#include <algorithm>
#include <limits>

#include <torch/torch.h>

#include "tessera/context/context.h"
#include "tessera/offload/offloader.h"
#include "tessera/timeline/intervals.h"

#include "cli/train/tensor_memory.h"
#include "cli/train/trainer.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kKeptSteps = 3; // in the timeline file

/// When a rank ran forward or backward in a step. Units: microseconds.
struct Busy {
  double total = 0;
  double first = std::numeric_limits<double>::infinity();
  double last = -std::numeric_limits<double>::infinity();
};

Busy busy_in(const std::vector<timeline::Event>& events, std::int64_t step) {
  Busy busy;
  std::vector<timeline::Interval> intervals;
  for (const timeline::Event& event : events) {
    if (event.step == step && (event.category == "forward" || event.category == "backward")) {
      intervals.push_back({event.start_us, event.end_us});
      busy.first = std::min(busy.first, event.start_us);
      busy.last = std::max(busy.last, event.end_us);
    }
  }
  for (const timeline::Interval& interval : timeline::united(std::move(intervals))) {
    busy.total += interval.end - interval.start;
  }
  return busy;
}

} // namespace

void Trainer::keep_events(std::int64_t step, std::int64_t pass) {
  timeline::Recorder& recorder = *context().recorder;
  events_lost_ = events_lost_ || recorder.dropped() > 0;
  for (timeline::Event& event : recorder.take()) {
    // The library counts calls of step functions, validation among them; here a step is an update.
    event.step = static_cast<int>(step);
    if (event.microbatch >= 0) {
      event.microbatch += static_cast<int>(pass * job_.parallel.microbatches);
    }
    kept_events_.push_back(std::move(event));
  }
}

Trainer::Totals Trainer::add_up(std::int64_t step, double loss) {
  keep_events(step, 0);
  std::erase_if(
      kept_events_, [&](const timeline::Event& event) { return event.step <= step - kKeptSteps; });
  Busy busy = busy_in(kept_events_, step);
  if (std::exchange(events_lost_, false)) {
    busy.total = std::numeric_limits<double>::quiet_NaN();
  }
  const auto& offloader = context().offloader;
  // All ranks' figures in one small message.
  enum Column {
    kLoss,
    kBusy,
    kFirst,
    kLast,
    kMemory,
    kPeak,
    kOffloaded,
    kStop,
    kWritten,
    kColumns
  };
  const std::optional<std::int64_t> peak = take_tensor_peak();
  torch::Tensor mine = torch::tensor(
      {loss * data_weight(),
       busy.total,
       busy.first,
       busy.last,
       static_cast<double>(resident_bytes()),
       static_cast<double>(peak.value_or(0)),
       offloader == nullptr ? 0.0 : static_cast<double>(offloader->host().bytes()),
       stop_asked() ? 1.0 : 0.0,
       saving_ && saving_->written() ? 1.0 : 0.0},
      torch::kDouble);
  torch::Tensor all = torch::empty({size(), kColumns}, torch::kDouble);
  context().group(Group::kWorld).all_gather(all.view({-1}), mine);
  Totals totals;
  totals.loss = all.select(1, kLoss).mean().item<double>();
  totals.stop = all.select(1, kStop).max().item<double>() > 0;
  totals.written = all.select(1, kWritten).min().item<double>() > 0;
  // The same as timeline::bubble_share of these events.
  const double span =
      all.select(1, kLast).max().item<double>() - all.select(1, kFirst).min().item<double>();
  const double share = 1 - all.select(1, kBusy).sum().item<double>() / (span * size());
  if (pp_size() > 1 && std::isfinite(share)) {
    totals.bubble_share = std::clamp(share, 0.0, 1.0);
  }
  for (int i = 0; i < size(); ++i) {
    totals.memory.push_back(static_cast<std::int64_t>(all[i][kMemory].item<double>()));
    if (peak) {
      totals.peaks.push_back(static_cast<std::int64_t>(all[i][kPeak].item<double>()));
    }
    if (offloader != nullptr) {
      totals.offloaded.push_back(static_cast<std::int64_t>(all[i][kOffloaded].item<double>()));
    }
  }
  return totals;
}

double Trainer::elapsed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

} // namespace tessera::cli
