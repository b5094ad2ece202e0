#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

/// Recomputation of activations: memory for time.
namespace tessera::recompute {

/// A part of a model that keeps its inputs only, until its backward runs it again.
struct Region {
  /// For error texts, such as "module 'layers.3'".
  std::string name;
  /// The forward: packed arguments to packed result. It must compute the same when it runs again.
  std::function<c10::IValue(const c10::IValue& args)> run;
  /// Whether any parameter that `run` reads requires a gradient.
  bool trains = true;
  /// Parameters that `run` may read. A GradientOrder gives their parts the turns of the microbatch;
  /// parts of others are kept until the end of the step.
  std::vector<at::Tensor> parameters;
  /// Tensors that `run` may change, such as running statistics: they change once for each call.
  std::vector<at::Tensor> buffers;
  /// Whether the second run draws the random numbers of the first.
  bool preserve_rng_state = true;
  /// Whether results of products of matrices are kept (kept_products.h), so that the second run
  /// computes what is between them only.
  bool keeps_products = false;
  /// The one module whose call `run` is; nullptr for anything else. It is compared, not used.
  const void* module = nullptr;
};

/// Runs the region. Where gradients are recorded, and some input or parameter requires one, the
/// results hang on one node that keeps `args`, the generator's state and the thread's autocast
/// modes; its backward computes what the engine would have kept, then the gradients. Otherwise, and
/// inside of another region, this is a plain call.
///
/// Every floating-point result requires a gradient then, also one that is made of no parameter.
/// Cost: the region's forward once more, inside of the backward; memory of the arguments.
/// Not collective, but for collectives of `run`, which run twice, in the same order on all ranks.
/// Threads: those that run user code.
/// Throws: UserError naming the region when `run` changes an argument in place; in the backward for
/// create_graph, for a second backward through the call, and when the second run returns tensors of
/// other number, shape or dtype than the first, or computes another number of products. What `run`
/// throws passes. Source: Karakus et al. 2021, appendix H.2.
c10::IValue run(Region region, const c10::IValue& args);

/// Returns the region that this thread runs, by name; nullptr outside of one.
const std::string* inside();

} // namespace tessera::recompute
