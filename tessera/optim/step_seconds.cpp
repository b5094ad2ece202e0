#include "tessera/optim/step_seconds.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tessera::optim {

StepSeconds::StepSeconds() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment while models are made
  const char* said = std::getenv(kStepSecondsVariable);
  asked_ = said != nullptr && std::string_view(said) == "1";
}

void StepSeconds::updated(int rank) {
  if (!asked_ || rank != 0) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  ++updates_;
  if (last_) {
    std::fprintf(
        stderr,
        "%s%lld: %.6f\n",
        kStepSecondsLine,
        static_cast<long long>(updates_),
        std::chrono::duration<double>(now - *last_).count());
  }
  last_ = now;
}

} // namespace tessera::optim
