#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

/// Attentions as regions of their own: what they keep grows with the square of the sequence, what
/// it takes to compute them again does not grow with the model's width squared.
namespace tessera::recompute {

/// Whether every attention of this process is recomputed in its backward; a layer's own options may
/// ask for it too. Sets attentions_run() to 0. Threads: outside of steps.
void set_attentions(bool recomputed);
bool attentions_recomputed();

/// Attentions that recompute_attention() ran since then with gradients recorded, which a pass that
/// traces the model does not; those that are part of a larger region too.
std::int64_t attentions_run();

/// What lies between an attention's products with weights: inputs to context. Where the weighted
/// sum is a kept_bmm() that is returned (ReturnedProduct), it is computed in the first run only.
using Attention = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Runs `attention` as a region (recomputation.h) that keeps `inputs`, undefined ones among them.
/// It reads no parameter, and changes nothing; its random numbers are those of the first run.
/// Cost: in the backward the attention once more; memory of the inputs.
/// Not collective. Threads, throws: as run().
/// Source: Korthikanti et al. 2022, section 5.
at::Tensor
recompute_attention(std::string name, const std::vector<at::Tensor>& inputs, Attention attention);

} // namespace tessera::recompute
