#include "tessera/diagnostics/activity_page.h"

#include <charconv>

namespace tessera::diagnostics {

namespace {

using State = ActivityPage::State;

void describe_script(const ActivityPage& page, Line& line) noexcept {
  line.add("the script, ");
  if (page.step < 1) {
    line.add("before the first step's end");
  } else {
    line.add("after ").add(page.step).add(" steps");
  }
  if (page.module[0] != '\0') {
    line.add(", ").add(page.module);
  }
}

void describe_task(const ActivityPage& page, Line& line) noexcept {
  if (page.module[0] == '\0') {
    line.add(", the step function");
  } else {
    line.add(", module '").add(page.module).add("'");
  }
  line.add(", microbatch ").add(std::int64_t{page.microbatch});
  line.add(page.backward != 0 ? ", backward" : ", forward");
}

} // namespace

Line& Line::add(std::int64_t number) noexcept {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return add(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
}

void describe(const ActivityPage& page, Line& line) noexcept {
  if (page.state == State::kScript) {
    describe_script(page, line);
  } else {
    line.add("step ").add(page.step);
  }
  if (page.state == State::kServes) {
    line.add(", waiting for requests");
  }
  if (page.state == State::kRuns || page.state == State::kWaits) {
    describe_task(page, line);
  }
  if (page.state == State::kWaits && page.target_rank < 0) {
    line.add(", waiting for the schedule");
  } else if (page.state == State::kWaits) {
    line.add(", waiting for module '").add(page.target);
    line.add("' on rank ").add(std::int64_t{page.target_rank});
  }
  for (const ShownOperation* shown : {&page.of_script, &page.of_others}) {
    if (shown->valid.load(std::memory_order_acquire) != 0) {
      line.add("; in ").add(shown->kind).add(" of group '").add(shown->group).add("'");
      return;
    }
  }
}

} // namespace tessera::diagnostics
