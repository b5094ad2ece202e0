#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::state {

class StateLayout;

/// `count` elements of a local tensor, from `local_start` on in row-major order, are the elements
/// `whole_start`, `whole_start + stride`, ... of a whole tensor.
struct ElementRun {
  std::int64_t local_start = 0;
  std::int64_t count = 0;
  int tensor = 0; // index in ElementPlaces::names
  std::int64_t whole_start = 0;
  std::int64_t stride = 1;

  bool operator==(const ElementRun&) const = default;
};

/// Where the elements of a local tensor stand in the tensors of the script's own model. Elements
/// that no run has, such as padding, stand in none of them.
struct ElementPlaces {
  std::vector<std::string> names; // of whole tensors
  std::vector<ElementRun> runs; // by local_start, without overlaps

  /// A tensor that is held as the script made it.
  static ElementPlaces identity(const std::string& name, std::int64_t elements);
  /// Those of `count` elements from `start` on, as a tensor of their own.
  ElementPlaces slice(std::int64_t start, std::int64_t count) const;
};

/// The places of all parameters that this rank holds, by local name. Of a distributed module the
/// numbers of all elements are divided as its state is, so 8 bytes for each element of the largest
/// distributed module are needed meanwhile. Not collective. Threads: step thread only.
std::map<std::string, ElementPlaces> element_places(const StateLayout& layout);

} // namespace tessera::state
