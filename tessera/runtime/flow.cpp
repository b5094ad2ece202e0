#include "tessera/runtime/flow.h"

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

class FlowWriter {
 public:
  explicit FlowWriter(std::vector<std::int64_t>& out) : out_(out) {}
  void put(std::int64_t number) {
    out_.push_back(number);
  }
  void put(const LegId& id) {
    out_.push_back(static_cast<std::int64_t>(id.call));
    out_.push_back(static_cast<std::int64_t>(id.leg));
  }

 private:
  std::vector<std::int64_t>& out_;
};

class FlowReader {
 public:
  explicit FlowReader(std::span<const std::int64_t> in) : in_(in) {}
  std::int64_t number() {
    TESSERA_CHECK(!in_.empty(), "a flow is torn");
    const std::int64_t value = in_.front();
    in_ = in_.subspan(1);
    return value;
  }
  int small() {
    return static_cast<int>(number());
  }
  std::size_t count() {
    const std::int64_t value = number();
    TESSERA_CHECK(
        value >= 0 && value <= static_cast<std::int64_t>(in_.size()),
        "a flow with a list of ",
        value);
    return static_cast<std::size_t>(value);
  }
  LegId id() {
    const auto call = static_cast<std::uint64_t>(number());
    const std::int64_t leg = number();
    TESSERA_CHECK(leg >= 0 && leg <= 3, "a flow with leg ", leg);
    return {call, static_cast<Leg>(leg)};
  }
  bool done() const {
    return in_.empty();
  }

 private:
  std::span<const std::int64_t> in_;
};

} // namespace

std::vector<std::int64_t> to_numbers(const RankFlow& flow) {
  std::vector<std::int64_t> numbers;
  FlowWriter out(numbers);
  out.put(static_cast<std::int64_t>(flow.turns.size()));
  for (const Turn& turn : flow.turns) {
    out.put(static_cast<std::int64_t>(turn.task));
    out.put(turn.number);
    out.put(static_cast<std::int64_t>(turn.cause));
    out.put(turn.leg);
    out.put(turn.keeps_place ? 1 : 0);
  }
  out.put(static_cast<std::int64_t>(flow.legs.size()));
  for (const LegFlow& leg : flow.legs) {
    out.put(leg.id);
    out.put(leg.sent ? 1 : 0);
    out.put(leg.peer);
    out.put(static_cast<std::int64_t>(leg.slots.size()));
    for (const SlotFlow& slot : leg.slots) {
      out.put(slot.defined ? 1 : 0);
      out.put(slot.needs_grad ? 1 : 0);
      out.put(slot.read ? 1 : 0);
      out.put(static_cast<std::int64_t>(slot.origins.size()));
      for (const Slot& origin : slot.origins) {
        out.put(origin.leg);
        out.put(origin.index);
      }
    }
  }
  return numbers;
}

RankFlow flow_from_numbers(std::span<const std::int64_t> numbers) {
  FlowReader in(numbers);
  RankFlow flow;
  flow.turns.resize(in.count());
  for (Turn& turn : flow.turns) {
    turn.task = static_cast<std::uint64_t>(in.number());
    turn.number = in.small();
    turn.cause = static_cast<Cause>(in.number());
    turn.leg = in.id();
    turn.keeps_place = in.number() != 0;
  }
  flow.legs.resize(in.count());
  for (LegFlow& leg : flow.legs) {
    leg.id = in.id();
    leg.sent = in.number() != 0;
    leg.peer = in.small();
    leg.slots.resize(in.count());
    for (SlotFlow& slot : leg.slots) {
      slot.defined = in.number() != 0;
      slot.needs_grad = in.number() != 0;
      slot.read = in.number() != 0;
      slot.origins.resize(in.count());
      for (Slot& origin : slot.origins) {
        origin.leg = in.id();
        origin.index = in.small();
      }
    }
  }
  TESSERA_CHECK(in.done(), "a flow with more behind its end");
  return flow;
}

} // namespace tessera::runtime
