#include "tessera/train/same_arguments.h"

#include <string>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/equal_number.h"

namespace tessera::train {

void check_same_arguments(const std::vector<std::uint64_t>& digests, comm::ProcessGroup& group) {
  using comm::EqualNumber;
  if (digests.empty()) {
    return;
  }
  const at::Tensor bytes =
      at::empty({static_cast<std::int64_t>(digests.size() * EqualNumber::kBytes)}, at::kByte);
  const auto bytes_of = [&](std::size_t i) {
    return bytes.data_ptr<std::uint8_t>() + i * EqualNumber::kBytes;
  };
  for (std::size_t i = 0; i < digests.size(); ++i) {
    EqualNumber::say(bytes_of(i), digests[i]);
  }
  group.all_reduce(bytes, comm::ReduceOp::kMax);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (!EqualNumber::differs(bytes_of(i))) {
      continue;
    }
    std::string ranks;
    for (const int rank : group.ranks()) {
      ranks += str(ranks.empty() ? "" : ", ", rank);
    }
    throw UserError(str(
        "argument ",
        i,
        " of the step has not the same numbers on the ranks ",
        ranks,
        ", which tensor parallelism joins. With prescaled_batch they bring the same samples: "
        "take those of tessera::data_rank() of tessera::data_size(), and shuffle alike; or leave "
        "prescaled_batch out, so that each rank brings samples of its own"));
  }
}

} // namespace tessera::train
