#include "tessera/nn/module/activation_checkpointing.h"

#include <optional>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/nn/module/script_class.h"
#include "tessera/recompute/strategy.h"

namespace tessera {

namespace {

bool is_sequential(const torch::nn::Module& module) {
  return dynamic_cast<const nn::SequentialImpl*>(&module) != nullptr;
}

} // namespace

nn::Recomputation nn::recomputation_for(
    const torch::nn::Module& module,
    const CheckpointOptions& options,
    const char* who) {
  const std::optional<int> children = recompute::children_of_strategy(options.strategy);
  if (!children) {
    throw ConfigError(
        str(who, ": strategy is '", options.strategy, "'; write ", recompute::kStrategies));
  }
  const bool selective = options.strategy == recompute::kSelective;
  const bool for_one = options.strategy == "each" || selective;
  if (!is_sequential(module) && (!for_one || options.pack_args_as_tuple)) {
    throw ConfigError(
        str(who,
            ": ",
            options.pack_args_as_tuple ? "pack_args_as_tuple" : "strategy",
            " is for a tessera::nn::Sequential, and this is a ",
            nn::type_name(module),
            "; leave it out"));
  }
  nn::Recomputation how;
  how.group = is_sequential(module) ? *children : 0;
  how.preserve_rng_state = options.preserve_rng_state;
  how.keeps_products = selective;
  return how;
}

void set_activation_checkpointing(torch::nn::Module& module, const CheckpointOptions& options) {
  torch::nn::Module& target = nn::replacement_of(module);
  nn::set_recomputation(
      target, nn::recomputation_for(target, options, "set_activation_checkpointing"));
}

} // namespace tessera
