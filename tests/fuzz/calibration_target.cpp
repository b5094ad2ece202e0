#include <cmath>

#include "tessera/base/error.h"
#include "tessera/planner/calibration.h"
#include "tessera/planner/trial_factors.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  planner::Candidate candidate;
  candidate.cost.stages.resize(1);
  candidate.cost.seconds = 2;
  planner::Trial measured;
  measured.predicted_seconds = 2;
  measured.measured_seconds = 3;
  planner::Trial failed;
  failed.predicted_seconds = 1;
  failed.failure = "out of memory";
  return {
      planner::calibration_json({candidate, candidate}, {measured, failed}, {}, {}, {}),
      R"({"measured_by_predicted": 1.25})"};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const double ratio = planner::calibration_ratio_of(text, "fuzz");
    if (!(ratio > 0) || !std::isfinite(ratio)) {
      fuzz::broken("a ratio is a positive number");
    }
    const planner::TrialFactors factors = planner::factors_of(text, "fuzz");
    for (const double factor : {factors.compute, factors.exchange, factors.waiting}) {
      if (!(factor > 0) || !std::isfinite(factor)) {
        fuzz::broken("a factor is a positive number");
      }
    }
    fuzz::count(true);
  } catch (const ConfigError&) {
    fuzz::count(false);
  }
  return 0;
}
