#include "tessera/autotune/lone_group.h"

#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::autotune {

namespace {

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

[[noreturn]] void refuse(const char* operation) {
  throw InternalError(str(operation, " was started although only shapes are followed"));
}

} // namespace

LoneGroup::LoneGroup(int size) : ProcessGroup("lone", first_ranks(size), 0) {}

comm::WorkPtr LoneGroup::all_reduce_async(at::Tensor /*tensor*/, comm::ReduceOp /*op*/) {
  refuse("all_reduce");
}
comm::WorkPtr LoneGroup::scaled_sum_async(at::Tensor /*tensor*/, double /*scale*/) {
  refuse("scaled_sum");
}
comm::WorkPtr LoneGroup::all_gather_async(at::Tensor /*output*/, at::Tensor /*input*/) {
  refuse("all_gather");
}
comm::WorkPtr LoneGroup::reduce_scatter_async(
    at::Tensor /*output*/,
    at::Tensor /*input*/,
    comm::ReduceOp /*op*/) {
  refuse("reduce_scatter");
}
comm::WorkPtr LoneGroup::all_to_all_async(at::Tensor /*output*/, at::Tensor /*input*/) {
  refuse("all_to_all");
}
comm::WorkPtr LoneGroup::broadcast_async(at::Tensor /*tensor*/, int /*root*/) {
  refuse("broadcast");
}
comm::WorkPtr LoneGroup::reduce_async(at::Tensor /*tensor*/, int /*root*/, comm::ReduceOp /*op*/) {
  refuse("reduce");
}
comm::WorkPtr LoneGroup::barrier_async() {
  refuse("barrier");
}

} // namespace tessera::autotune
