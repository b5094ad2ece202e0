#include "tessera/runtime/replay/recorded_flow.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

class FlowWriter {
 public:
  template <typename Number>
  void number(const Number& value) {
    out.push_back(static_cast<std::int64_t>(value));
  }
  template <typename Element>
  void resize(const std::vector<Element>& list) {
    number(list.size());
  }
  std::vector<std::int64_t> out;
};

class FlowReader {
 public:
  explicit FlowReader(std::span<const std::int64_t> in) : in_(in) {}
  template <typename Number>
  void number(Number& value) {
    value = static_cast<Number>(next());
  }
  void number(CallMessage& value) {
    const std::int64_t kind = next();
    TESSERA_CHECK(kind >= 0 && kind <= 3, "a flow with call message ", kind);
    value = static_cast<CallMessage>(kind);
  }
  template <typename Element>
  void resize(std::vector<Element>& list) {
    const std::int64_t size = next();
    TESSERA_CHECK(
        size >= 0 && size <= static_cast<std::int64_t>(in_.size()), "a flow with a list of ", size);
    list.resize(size);
  }
  bool done() const {
    return in_.empty();
  }

 private:
  std::int64_t next() {
    TESSERA_CHECK(!in_.empty(), "a flow is torn");
    const std::int64_t value = in_.front();
    in_ = in_.subspan(1);
    return value;
  }

  std::span<const std::int64_t> in_;
};

// The one description of a flow's numbers, for the writer and the reader.
template <typename Numbers, typename Id>
void visit_id(Numbers& numbers, Id& id) {
  numbers.number(id.call);
  numbers.number(id.kind);
}

template <typename Numbers, typename Slots>
void visit_slots(Numbers& numbers, Slots& slots) {
  numbers.resize(slots);
  for (auto& slot : slots) {
    numbers.number(slot.defined);
    numbers.number(slot.requires_grad);
    numbers.number(slot.read);
    numbers.resize(slot.origins);
    for (auto& origin : slot.origins) {
      visit_id(numbers, origin.message);
      numbers.number(origin.index);
    }
  }
}

template <typename Numbers, typename Flow>
void visit(Numbers& numbers, Flow& flow) {
  numbers.resize(flow.turns);
  for (auto& turn : flow.turns) {
    numbers.number(turn.task);
    numbers.number(turn.number);
    numbers.number(turn.cause);
    visit_id(numbers, turn.message);
    numbers.number(turn.keeps_place);
  }
  numbers.resize(flow.messages);
  for (auto& message : flow.messages) {
    visit_id(numbers, message.id);
    numbers.number(message.sent);
    numbers.number(message.peer);
    visit_slots(numbers, message.slots);
  }
}

} // namespace

std::vector<std::int64_t> to_numbers(const RankFlow& flow) {
  FlowWriter writer;
  visit(writer, flow);
  return std::move(writer.out);
}

RankFlow flow_from_numbers(std::span<const std::int64_t> numbers) {
  FlowReader reader(numbers);
  RankFlow flow;
  visit(reader, flow);
  TESSERA_CHECK(reader.done(), "a flow with more behind its end");
  return flow;
}

} // namespace tessera::runtime
