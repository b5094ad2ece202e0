#include "tessera/simulator/pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::simulator {

namespace {

void validate(const SimulationOptions& options, int devices) {
  if (!std::isfinite(options.jitter) || options.jitter < 0) {
    throw ConfigError(str("jitter: found ", options.jitter, "; write 0 or more"));
  }
  for (const auto& [device, factor] : options.slow_devices) {
    if (device < 0 || device >= devices || !std::isfinite(factor) || factor <= 0) {
      throw ConfigError(
          str("slow device ",
              device,
              ": found ",
              factor,
              " times; write a factor of more than 0 for a device from 0 to ",
              devices - 1));
    }
  }
}

} // namespace

double Pipelines::drawn_factor(int ranks) {
  if (options_.jitter == 0) {
    return 1;
  }
  double most = normal_(random_);
  for (int i = 1; i < ranks; ++i) {
    most = std::max(most, normal_(random_));
  }
  return std::exp(options_.jitter * most - options_.jitter * options_.jitter / 2);
}

void Pipelines::at_time(double time, Then then) {
  events_.push_back({time, created_++, then});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

Pipelines::Then Pipelines::call(std::function<void()> function) {
  if (free_calls_.empty()) {
    free_calls_.push_back(static_cast<int>(calls_.size()));
    calls_.emplace_back();
  }
  const int index = free_calls_.back();
  free_calls_.pop_back();
  calls_[at(index)] = std::move(function);
  return {Then::Kind::kCall, index};
}

void Pipelines::act(Then then) {
  switch (then.kind) {
    case Then::Kind::kTaskEnds:
      finish(then.index);
      return;
    case Then::Kind::kComputed:
      computed_a_part(then.index);
      return;
    case Then::Kind::kStreamEnds:
      end_stream(then.index);
      return;
    case Then::Kind::kArrives:
      arrive(then.index);
      return;
    case Then::Kind::kCall: {
      const std::function<void()> function = std::move(calls_[at(then.index)]);
      free_calls_.push_back(then.index);
      function();
      return;
    }
  }
}

void Pipelines::flow(double bytes, const std::vector<LinkUse>& links, double limit, Then then) {
  const std::size_t id = at(network_.start(now_, bytes, links, limit));
  if (id >= on_flow_end_.size()) {
    on_flow_end_.resize(id + 1);
  }
  on_flow_end_[id] = then;
}

SimulationResult Pipelines::run() {
  for (const int d : simulated_) {
    ask_schedule(d);
  }
  const auto take_event = [this] {
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    const Then then = events_.back().then;
    events_.pop_back();
    act(then);
  };
  for (;;) {
    const double event = events_.empty() ? kUnlimited : events_.front().time;
    if (event == now_ && !network_.ends_at(now_)) {
      take_event(); // rates follow once for all that happens now
      continue;
    }
    const double flow = network_.next_end();
    if (flow == kUnlimited && event == kUnlimited) {
      break;
    }
    if (flow <= event) {
      now_ = flow;
      act(on_flow_end_[at(network_.end_next())]);
    } else {
      now_ = event;
      take_event();
    }
  }
  if (!stepped_) {
    throw ConfigError(
        "the schedule stands still: microbatches are left that it never "
        "starts; write another order or more active microbatches");
  }
  return result();
}

void Pipelines::set_state(int replica, int microbatch, State state) {
  progress_[at(replica)].states[at(microbatch)] = state;
  progressed_[at(replica)] = 1;
}

void Pipelines::ask_schedule(int replica) {
  if (progressed_[at(replica)] == 0) {
    return;
  }
  while (const auto action = schedules_[at(replica)]->next(progress_[at(replica)])) {
    Task task;
    task.microbatch = action->microbatch;
    task.forward = action->phase == schedule::Phase::kForward;
    if (task.forward) {
      set_state(replica, task.microbatch, State::kForward);
      make_ready(0, replica, task);
    } else {
      set_state(replica, task.microbatch, State::kBackward);
      task.part = returns_home_ ? Part::kTail : Part::kLayers;
      task.stage = returns_home_ ? 0 : strategy_.stages() - 1;
      make_ready(rank_of(task.stage), replica, task);
    }
  }
  progressed_[at(replica)] = 0;
}

void Pipelines::make_ready(int rank, int replica, const Task& task) {
  std::vector<Task>& ready = unit(rank, replica).ready;
  const auto behind = [](const Task& a, const Task& b) { return b < a; };
  ready.insert(std::upper_bound(ready.begin(), ready.end(), task, behind), task);
  try_start(rank, replica);
}

template <typename Ranks>
double Pipelines::seconds_of(const Ranks& ranks, const Task& task) const {
  switch (task.part) {
    case Part::kLayers:
      return task.forward ? ranks.layers.forward : ranks.layers.backward;
    case Part::kTail:
      return task.forward ? ranks.tail.forward : ranks.tail.backward;
    case Part::kRelay:
      return options_.constants.link_latency_seconds; // stage 0 receives and forwards
  }
  return 0;
}

template <typename Ranks>
double Pipelines::deferred_seconds_of(const Ranks& ranks, const Task& task) {
  if (task.forward || task.part == Part::kRelay) {
    return 0;
  }
  return task.part == Part::kTail ? ranks.tail.deferred : ranks.layers.deferred;
}

double Pipelines::exchange_seconds_of(const StageRun& stage, const Task& task) {
  switch (task.part) {
    case Part::kLayers:
      return task.forward ? stage.exchange.forward : stage.exchange.backward;
    case Part::kTail:
      return task.forward ? stage.tail_exchange.forward : stage.tail_exchange.backward;
    case Part::kRelay:
      break;
  }
  return 0;
}

void Pipelines::try_start(int rank, int replica) {
  Unit& here = unit(rank, replica);
  if (here.busy || here.ready.empty()) {
    return;
  }
  const Task task = here.ready.back();
  const bool begins = task.forward && task.part == Part::kLayers;
  StageRun& stage = stage_run(task.stage, replica);
  if (begins && stage.in_flight >= most_in_flight_[at(task.stage)]) {
    return; // no further microbatch before a backward ends
  }
  here.ready.pop_back();
  here.busy = true;
  here.running = task;
  here.answered = false;
  here.started = now_;
  if (begins) {
    ++stage.in_flight;
    here.peak_bytes = std::max(here.peak_bytes, bytes_of(rank, replica, task.stage));
  }
  if (task.part != Part::kRelay) {
    ++result_.tasks;
    sample_memory(rank, replica, task.stage);
  }
  const double seconds = compute(rank, replica);
  if (!task.forward && task.part == Part::kLayers && stage.backwards_left == 1 && seconds > 0) {
    announce_buckets(task.stage, replica, seconds);
  }
}

double Pipelines::compute(int rank, int replica) {
  Unit& here = unit(rank, replica);
  const Task& task = here.running;
  const bool relays = task.part == Part::kRelay;
  // What rank 0 forwards takes it as long whatever the stage is.
  const StageRun& stage = stage_run(relays ? rank : task.stage, replica);
  const std::vector<Share>& shares = stage.shares;
  const Then ends = {Then::Kind::kTaskEnds, unit_of(rank, replica)};
  here.factors.clear();
  if (!stage.on_cores) {
    const double factor = relays ? 1 : drawn_factor(strategy_.tp);
    here.factors.push_back(factor);
    const double seconds = seconds_of(stage, task) * factor + exchange_seconds_of(stage, task);
    at_time(now_ + seconds, ends);
    return seconds + deferred_seconds_of(stage, task) * factor;
  }
  const Then computed = {Then::Kind::kComputed, unit_of(rank, replica)};
  here.parts_left = static_cast<int>(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double factor = relays ? 1 : drawn_factor(shares[i].ranks);
    here.factors.push_back(factor);
    compute_a_part(here, shares[i], i, seconds_of(shares[i], task) * factor, computed);
  }
  return 0;
}

void Pipelines::compute_a_part(
    const Unit& here,
    const Share& share,
    std::size_t index,
    double seconds,
    Then computed) {
  if (shares_cores(share)) {
    // Ranks that compute at the same time share the cores of their host.
    const Path& path = here.cores[index];
    flow(seconds * kComputation, path.uses, path.limit, computed);
  } else {
    at_time(now_ + seconds, computed);
  }
}

bool Pipelines::compute_deferred(int rank, int replica) {
  Unit& here = unit(rank, replica);
  const Task& task = here.running;
  if (task.part == Part::kRelay) {
    return false;
  }
  const StageRun& stage = stage_run(task.stage, replica);
  if (deferred_seconds_of(stage, task) == 0) {
    return false;
  }
  if (!stage.on_cores) {
    const double seconds = deferred_seconds_of(stage, task) * here.factors.front();
    at_time(now_ + seconds, {Then::Kind::kTaskEnds, unit_of(rank, replica)});
    return true;
  }
  here.parts_left = static_cast<int>(stage.shares.size());
  for (std::size_t i = 0; i < stage.shares.size(); ++i) {
    const double seconds = deferred_seconds_of(stage.shares[i], task) * here.factors[i];
    compute_a_part(
        here, stage.shares[i], i, seconds, {Then::Kind::kComputed, unit_of(rank, replica)});
  }
  return true;
}

// Exchanges follow the computation; measured ones were measured with all ranks at work.
void Pipelines::computed_a_part(int index) {
  Unit& here = units_[at(index)];
  if (--here.parts_left > 0) {
    return;
  }
  if (here.answered) {
    finish(index);
    return;
  }
  const StageRun& stage = stage_run(here.running.stage, index % strategy_.dp);
  const double exchange = exchange_seconds_of(stage, here.running);
  if (exchange > 0) {
    at_time(now_ + exchange, {Then::Kind::kTaskEnds, index});
  } else {
    finish(index);
  }
}

void Pipelines::finish(int index) {
  const int rank = index / strategy_.dp;
  const int replica = index % strategy_.dp;
  Unit& here = units_[at(index)];
  const Task task = here.running;
  const bool answers = !task.forward && !here.answered;
  if (answers && compute_deferred(rank, replica)) {
    here.answered = true;
    answer(rank, replica, task);
    return;
  }
  here.busy = false;
  if (task.part != Part::kRelay) {
    if (options_.keep_events) {
      record(
          rank,
          replica,
          "stage " + std::to_string(task.stage),
          task.forward ? "forward" : "backward",
          task.microbatch,
          0,
          here.started,
          now_);
    }
    busy_seconds_[at(replica)] += now_ - here.started;
    span_seconds_ = std::max(span_seconds_, now_);
    sample_memory(rank, replica, -1);
  }
  if (task.forward) {
    after_forward(rank, replica, task);
  } else {
    if (answers) {
      answer(rank, replica, task);
    }
    after_backward(rank, replica, task);
  }
  ask_schedule(replica);
  try_start(rank, replica);
}

void Pipelines::after_forward(int rank, int replica, const Task& task) {
  const int last = strategy_.stages() - 1;
  Task next = {.forward = true, .microbatch = task.microbatch};
  if (task.part == Part::kRelay) {
    next.stage = task.stage;
    send(0, rank_of(task.stage), replica, task.stage, next);
    return;
  }
  if (task.part == Part::kTail || (task.stage == last && !returns_home_)) {
    set_state(replica, task.microbatch, State::kReady);
    return;
  }
  if (task.stage == last) {
    next.part = Part::kTail;
    send(rank, 0, replica, last + 1, next);
    return;
  }
  next.stage = task.stage + 1;
  pass_on(rank, replica, next.stage, next);
}

void Pipelines::pass_on(int rank, int replica, int cut, Task next) {
  const int to = rank_of(next.stage);
  if (relays_ && rank > 0 && to > 0) {
    next.part = Part::kRelay;
    send(rank, 0, replica, cut, next);
  } else {
    send(rank, to, replica, cut, next);
  }
}

void Pipelines::answer(int rank, int replica, const Task& task) {
  Task next = {.forward = false, .microbatch = task.microbatch};
  if (task.part == Part::kRelay) {
    next.stage = task.stage;
    send(0, rank_of(task.stage), replica, task.stage + 1, next);
    return;
  }
  if (task.part == Part::kTail) {
    next.stage = strategy_.stages() - 1;
    send(0, strategy_.pp - 1, replica, strategy_.stages(), next);
    return;
  }
  if (task.stage == 0) {
    return;
  }
  next.stage = task.stage - 1;
  pass_on(rank, replica, task.stage, next);
}

void Pipelines::after_backward(int rank, int replica, const Task& task) {
  if (task.part != Part::kLayers) {
    return;
  }
  --stage_run(task.stage, replica).in_flight;
  sample_memory(rank, replica, -1);
  if (task.stage == 0) {
    set_state(replica, task.microbatch, State::kDone);
  }
  end_backward(task.stage, replica);
}

// The gradients of a stage are whole when its last backward has ended.
void Pipelines::end_backward(int stage, int replica) {
  StageRun& run = stage_run(stage, replica);
  if (--run.backwards_left > 0) {
    return;
  }
  fill_buckets(stage, replica);
  replicas_left_[at(stage)] -= stands_for_[at(replica)];
  if (replicas_left_[at(stage)] == 0) {
    end_of_stage();
  }
}

std::pair<const Pipelines::Unit*, Pipelines::Way>
Pipelines::way_between(int from, int to, int replica) {
  if (relays_) {
    return to == 0 ? std::pair(&unit(from, replica), kHome)
                   : std::pair(&unit(to, replica), kFromHome);
  }
  // Stages in turns, and what returns home, go on from the last rank to the first, and back.
  const bool next = to == from + 1 || (to == 0 && from > 1);
  return {&unit(from, replica), next ? kNext : kPrevious};
}

void Pipelines::send(int from, int to, int replica, int cut, const Task& task) {
  if (free_messages_.empty()) {
    free_messages_.push_back(static_cast<int>(messages_.size()));
    messages_.emplace_back();
  }
  const int index = free_messages_.back();
  free_messages_.pop_back();
  const double bytes = table_of(replica).cut_bytes(strategy_.boundaries[at(cut)]);
  const auto [unit, way] = way_between(from, to, replica);
  const std::vector<Path>& paths = unit->ways[way];
  messages_[at(index)] = {
      .from = from,
      .to = to,
      .replica = replica,
      .task = task,
      .bytes = bytes,
      .start = now_,
      .latency = unit->latencies[way],
      .streams = static_cast<int>(paths.size())};
  for (const Path& path : paths) {
    flow(bytes, path.uses, path.limit, {Then::Kind::kStreamEnds, index});
  }
}

void Pipelines::end_stream(int message) {
  Message& one = messages_[at(message)];
  if (--one.streams == 0) {
    at_time(now_ + one.latency, {Then::Kind::kArrives, message});
  }
}

void Pipelines::arrive(int index) {
  const Message message = messages_[at(index)];
  free_messages_.push_back(index);
  if (options_.keep_events) {
    record(
        message.from,
        message.replica,
        message.task.forward ? "activation" : "gradient",
        "comm",
        message.task.microbatch,
        1,
        message.start,
        now_,
        message.bytes);
  }
  make_ready(message.to, message.replica, message.task);
}

SimulationResult simulate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options) {
  cost::validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  validate(options, cluster.device_count());
  return Pipelines(model, cluster, strategy, options).run();
}

} // namespace tessera::simulator
