#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/comm/world.h"

// What every backend must do, written once. A test case is a function that all
// ranks of a world run; unit tests run it on threads of one process, MPI tests
// on processes. It throws on the rank on which something is wrong, because an
// expectation of GoogleTest would let that rank go on into collectives that fail
// for a second reason, and a fatal one leaves only the function that it stands in,
// not the case. Whoever runs the case reports each rank's text. Errors that are
// expected are compared by the words that a user needs of them.
namespace tessera::comm::conformance {

/// Throws std::runtime_error with the text unless `condition`.
void require(bool condition, const std::string& text);

struct Case {
  const char* name;
  int min_ranks;
  void (*run)(World& world);
  /// For the world's options; short where a case waits for it to pass.
  std::chrono::milliseconds timeout{60000};
};

/// All cases, those of collectives and those of objects.
const std::vector<Case>& all_cases();

/// Input of rank `rank` in an exchange named by `seed`: small whole numbers, so
/// that sums are exact in every dtype.
at::Tensor make_input(int rank, std::int64_t count, at::ScalarType type, std::int64_t seed);

} // namespace tessera::comm::conformance
