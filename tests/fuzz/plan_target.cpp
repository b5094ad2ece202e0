#include "tessera/base/error.h"
#include "tessera/plan/plan.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  plans::Plan small;
  plans::Plan large;
  large.model = "a \"quoted\" name";
  large.degrees = {.pipeline = 2, .tensor = 1, .reduced_data = 3};
  large.placement = "PTD";
  large.schedule = "simple";
  large.microbatches = 4;
  large.active_microbatches = 3;
  large.partition = {{"", 0}, {"encoder", 0}, {"decoder.0", 1}};
  plans::Plan custom = large;
  custom.schedule = "custom";
  custom.microbatches = 2;
  custom.active_microbatches = 2;
  custom.custom_schedule = "0F 1F 0B 1B";
  return {plans::to_json(small), plans::to_json(large), plans::to_json(custom)};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const plans::Plan plan = plans::plan_from_json(text);
    plans::validate(plan);
    if (!(plans::plan_from_json(plans::to_json(plan)) == plan)) {
      fuzz::broken("what was accepted is written as it was read");
    }
    fuzz::count(true);
  } catch (const PlanError&) {
    fuzz::count(false);
  }
  return 0;
}
