#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>

#include "tessera/comm/shared_memory/window.h"

namespace tessera::sharding {

class GatherBuffers;

/// Where the parts of one parameter lie. Rank i of the window holds elements [i, i + 1) * per_rank
/// of the flattened parameter; what goes beyond its end is zero.
struct Source {
  std::string name;
  std::shared_ptr<comm::Window> window;
  std::shared_ptr<GatherBuffers> buffers;
  int degree = 1;
  std::size_t offset = 0; // in every rank's region, in bytes
  std::size_t part_bytes = 0;
  std::int64_t elements = 0; // of the whole parameter

  std::size_t bytes() const {
    return part_bytes * static_cast<std::size_t>(degree);
  }
};

/// What the gathering of a model's parameters has cost so far.
struct GatherCount {
  std::int64_t gathers = 0;
  std::int64_t gathered_elements = 0;
  std::int64_t live_elements = 0; // in gathered form now
  std::int64_t most_live_elements = 0;
};

/// Memory for gathered parameters of one model. What the last operator used stays gathered until
/// the next one needs something else, for a layer's backward reads its weight twice.
///
/// A gather reads the other ranks' memory and waits for nobody, so a rank may gather what the
/// others never do. Values may not change meanwhile: whoever writes parts waits for all ranks
/// before and after. Not collective. Threads: those that run user code, one at a time.
class GatherBuffers {
 public:
  /// With more live elements nothing stays gathered after its operator.
  explicit GatherBuffers(std::int64_t most_kept) : most_kept_(most_kept) {}

  /// Gives up everything gathered that is not among `needed`.
  void make_room(const std::vector<const Source*>& needed);
  /// The parameter's elements one after the other.
  at::DataPtr take(const Source& source);
  /// The memory of `take`, unchanged.
  void give_back(const Source& source, at::DataPtr memory);
  /// Frees all that is not taken: parts have changed, or a step is over.
  void release();

  const GatherCount& count() const {
    return count_;
  }

 private:
  struct Kept {
    const Source* source;
    std::int64_t elements;
    std::size_t bytes;
    at::DataPtr memory;
  };
  struct Free {
    std::size_t bytes;
    at::DataPtr memory;
  };
  at::DataPtr memory_of(std::size_t bytes);

  std::int64_t most_kept_;
  std::vector<Kept> kept_;
  std::vector<Free> free_;
  GatherCount count_;
};

} // namespace tessera::sharding
