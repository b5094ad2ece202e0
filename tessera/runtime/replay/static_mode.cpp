#include "tessera/runtime/replay/static_mode.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/runtime/replay/step_factories.h"

namespace tessera::runtime {

namespace {

c10::IValue as_value(const std::vector<std::int64_t>& numbers) {
  return torch::tensor(numbers, at::kLong);
}

std::vector<std::int64_t> as_numbers(const c10::IValue& value) {
  const at::Tensor tensor = value.toTensor();
  const auto* data = tensor.data_ptr<std::int64_t>();
  return {data, data + tensor.numel()};
}

std::int64_t digest(const std::vector<PlannedTurn>& turns) {
  std::uint64_t hash = 0;
  for (const PlannedTurn& planned : turns) {
    hash = mix(hash, mix(planned.turn.task, planned.turn.number));
  }
  return static_cast<std::int64_t>(hash);
}

} // namespace

StaticMode::StaticMode(Options options, Context context) : options_(options), context_(context) {}

void StaticMode::begin(const StepKind& kind, StepWork& work) {
  running_ = &kinds_[kind];
  if (!running_->refused.empty()) {
    throw UserError(running_->refused);
  }
  recording_ = Recording();
  if (options_.direct && running_->recordings.empty()) {
    recording_.reads = std::make_shared<ReadSlots>();
  }
  if (running_->program != nullptr) {
    factory_ = std::make_unique<ReplayedStepFactory>(*running_->program);
  } else {
    factory_ = std::make_unique<RecordedStepFactory>(recording_);
  }
  work.factory = factory_.get();
  work.script_stream = false; // a recorded order cannot follow one stream
}

void StaticMode::completed(double seconds) {
  Kind& kind = *running_;
  if (kind.program != nullptr) {
    return;
  }
  if (!kind.difference && recording_.failed_call) {
    kind.difference =
        str("a module call failed and the failure was caught, which static_mode "
            "cannot repeat: ",
            *recording_.failed_call);
  }
  if (!kind.recordings.empty()) {
    if (!kind.difference) {
      kind.difference = flow_difference(kind.recordings.front(), recording_, *context_.modules);
    }
    recording_.messages.clear(); // as in the first, or never needed
  }
  // A verifying step is slow, so its time does not count.
  kind.seconds.push_back(
      recording_.reads != nullptr ? std::numeric_limits<double>::infinity() : seconds);
  kind.recordings.push_back(std::move(recording_));
  if (static_cast<int>(kind.recordings.size()) <
      options_.recorded_steps + (options_.direct ? 1 : 0)) {
    return;
  }
  make_program(kind, agree_on_fastest(kind));
  kind.recordings.clear();
}

// A step is as slow as its slowest rank.
int StaticMode::agree_on_fastest(Kind& kind) const {
  const c10::IValue mine = c10::ivalue::Tuple::create(
      {c10::IValue(kind.difference ? *kind.difference : std::string()),
       c10::IValue(torch::tensor(kind.seconds, at::kDouble))});
  const auto all = comm::all_gather_object(*context_.world, *context_.all, mine);
  at::Tensor slowest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& parts = all[i].toTupleRef().elements();
    if (!parts[0].toStringRef().empty()) {
      kind.refused =
          str("static_mode: the recorded steps took different paths; rank ",
              context_.all->ranks()[i],
              ", ",
              parts[0].toStringRef(),
              kStaticAdvice);
      kind.recordings.clear();
      throw UserError(kind.refused);
    }
    const at::Tensor seconds = parts[1].toTensor();
    slowest = slowest.defined() ? at::maximum(slowest, seconds) : seconds;
  }
  return static_cast<int>(slowest.argmin().item<std::int64_t>());
}

void StaticMode::make_program(Kind& kind, int fastest) const {
  RankFlow flow = flow_of(kind.recordings.front());
  flow.turns = kind.recordings.at(fastest).turns;
  std::vector<RankFlow> flows;
  for (const c10::IValue& value :
       comm::all_gather_object(*context_.world, *context_.pipeline, as_value(to_numbers(flow)))) {
    flows.push_back(flow_from_numbers(as_numbers(value)));
  }
  auto plans = make_static_plan(flows, options_.direct, options_.exact_sums);
  int number = 0;
  for (const auto& [key, other] : kinds_) {
    number += other.program != nullptr ? 1 : 0;
  }
  auto program = std::make_unique<StaticProgram>(
      number,
      std::move(plans.at(context_.modules->pp_rank())),
      std::move(kind.recordings.front()),
      flow.turns,
      *context_.modules);
  if (context_.ordered != nullptr) {
    const c10::IValue mine = digest(program->plan.turns);
    for (const c10::IValue& other :
         comm::all_gather_object(*context_.world, *context_.ordered, mine)) {
      TESSERA_CHECK(
          other.toInt() == mine.toInt(), "replicas recorded their tasks in different orders");
    }
  }
  kind.program = std::move(program);
}

} // namespace tessera::runtime
