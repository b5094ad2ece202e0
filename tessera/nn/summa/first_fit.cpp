#include "tessera/nn/summa/first_fit.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::nn::summa {

namespace {
constexpr std::size_t kFirstFitLine = 64;
}

std::size_t FirstFit::take(std::size_t bytes) {
  const std::size_t wanted =
      (std::max(bytes, std::size_t{1}) + kFirstFitLine - 1) / kFirstFitLine * kFirstFitLine;
  std::size_t start = begin_;
  for (const auto& [offset, end] : taken_) {
    if (offset - start >= wanted) {
      break;
    }
    start = end;
  }
  if (end_ - start < wanted) {
    throw ConfigError(tessera::str(
        "the shared memory of a mesh is full: ",
        bytes,
        " bytes more do not fit into ",
        end_ - begin_,
        "; give MeshOptions::shared_bytes a larger value"));
  }
  taken_[start] = start + wanted;
  high_water_ = std::max(high_water_, start + wanted - begin_);
  return start;
}

void FirstFit::give_back(std::size_t offset) {
  taken_.erase(offset);
}

} // namespace tessera::nn::summa
