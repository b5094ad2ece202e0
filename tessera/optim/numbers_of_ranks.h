#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {
struct Context;
}

namespace tessera::optim {

/// Returns each rank's numbers, first those of rank 0; private to this folder. Collective over the
/// world.
at::Tensor of_all_ranks(const Context& context, const std::vector<double>& numbers);

} // namespace tessera::optim
