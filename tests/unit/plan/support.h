#pragma once

#include <string>

#include "tessera/base/error.h"
#include "tessera/plan/plan.h"

namespace tessera::plans::test {

/// The message of the PlanError that `call` throws, or "no error".
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

/// A plan of two pp ranks that is valid.
inline Plan sample() {
  return {
      .model = "toy \"quoted\"",
      .degrees = {.pipeline = 2, .tensor = 1, .reduced_data = 3},
      .placement = "PTD",
      .schedule = "simple",
      .microbatches = 4,
      .active_microbatches = 3,
      .partition = {{"", 0}, {"encoder", 0}, {"decoder", 1}}};
}

} // namespace tessera::plans::test
