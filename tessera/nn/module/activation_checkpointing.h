#pragma once

#include <string>
#include <utility>

#include <torch/nn/module.h>

#include "tessera/nn/module/recomputed_call.h"

/// Modules that keep their inputs only and run their forward again in the backward.
namespace tessera {

struct CheckpointOptions {
  /// Whether the second run of a forward draws the random numbers (dropout) of the first.
  bool preserve_rng_state = true;
  /// Accepted for scripts that name it: a child of a Sequential gets a tuple as it comes either
  /// way.
  bool pack_args_as_tuple = false;
  /// Of a tessera::nn::Sequential, whose children are recomputed each by itself ("each"), together
  /// as far as they follow one another on one pipeline rank ("contiguous"), or in groups of x of
  /// those ("group_x"). Other modules are one part, and take "each". "selective" is "each" that
  /// keeps the results of products with weights as well (those of this library's layers and
  /// holders) and computes again only what is cheap beside them: more memory, less time.
  std::string strategy = "each";
};

/// Makes later calls of `module` be recomputed in their backward. Inside such a call another
/// flagged module is called plainly. All ranks call it alike, before or after wrapping the model.
///
/// A module that is recomputed as one must lie on one pipeline rank with all its parts: else the
/// first step throws PlanError where the partition is manual, and warns and leaves the flag out
/// where it is automatic. Children of a Sequential are judged one by one.
///
/// Not collective. Threads: outside of steps. Cost: see recompute::run.
/// Throws: ConfigError for a module without a holder of this library, a strategy that is none, and
/// an option that only a Sequential takes.
/// Source: Karakus et al. 2021, appendices H.2 and I.2.
void set_activation_checkpointing(torch::nn::Module& module, const CheckpointOptions& options = {});

template <typename Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
void set_activation_checkpointing(const Holder& holder, const CheckpointOptions& options = {}) {
  set_activation_checkpointing(static_cast<torch::nn::Module&>(*holder.ptr()), options);
}

namespace nn {

/// Throws: ConfigError as set_activation_checkpointing; `who` names the caller.
Recomputation recomputation_for(
    const torch::nn::Module& module,
    const CheckpointOptions& options,
    const char* who);

} // namespace nn

/// Calls the module, with this call recomputed in its backward. The module may live on another
/// rank. Threads: those that run user code.
template <typename Holder, typename... Args>
requires requires(const Holder& holder) {
  holder.ptr();
}
auto checkpoint_call(const CheckpointOptions& options, Holder holder, Args&&... args) {
  const nn::CheckpointedCall call(
      *holder.ptr(), nn::recomputation_for(*holder.ptr(), options, "checkpoint_call"));
  return holder(std::forward<Args>(args)...);
}
template <typename Holder, typename... Args>
requires requires(const Holder& holder) {
  holder.ptr();
}
auto checkpoint_call(Holder holder, Args&&... args) {
  return checkpoint_call(CheckpointOptions{}, std::move(holder), std::forward<Args>(args)...);
}

/// Calls the Sequential on `input`, its children recomputed as `options.strategy` says.
template <typename Holder, typename Input>
auto checkpoint_sequential(
    Holder sequential,
    Input&& input,
    const CheckpointOptions& options = {}) {
  return checkpoint_call(options, std::move(sequential), std::forward<Input>(input));
}

} // namespace tessera
