#include "tessera/nn/module/activation_checkpointing.h"

#include <charconv>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/nn/module/script_class.h"
#include "tessera/nn/module/sequential.h"

namespace tessera {

namespace {

constexpr int kAllOfARank = std::numeric_limits<int>::max();

bool is_sequential(const torch::nn::Module& module) {
  return dynamic_cast<const nn::SequentialImpl*>(&module) != nullptr;
}

/// Children a region, or nothing for a word that is no strategy.
std::optional<int> children_of(const std::string& strategy) {
  if (strategy == "each") {
    return 1;
  }
  if (strategy == "contiguous") {
    return kAllOfARank;
  }
  const std::string prefix = "group_";
  int children = 0;
  const char* end = strategy.data() + strategy.size();
  if (strategy.starts_with(prefix) && strategy.size() > prefix.size()) {
    const auto read = std::from_chars(strategy.data() + prefix.size(), end, children);
    if (read.ec == std::errc() && read.ptr == end && children >= 1) {
      return children;
    }
  }
  return std::nullopt;
}

} // namespace

bool is_checkpoint_strategy(const std::string& word) {
  return children_of(word).has_value();
}

nn::Recomputation nn::recomputation_for(
    const torch::nn::Module& module,
    const CheckpointOptions& options,
    const char* who) {
  const std::optional<int> children = children_of(options.strategy);
  if (!children) {
    throw ConfigError(
        str(who,
            ": strategy is '",
            options.strategy,
            "'; write \"each\", \"contiguous\" or \"group_x\" with a whole number x of 1 or more, "
            "such as \"group_3\""));
  }
  if (!is_sequential(module) && (options.strategy != "each" || options.pack_args_as_tuple)) {
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
  return how;
}

void set_activation_checkpointing(torch::nn::Module& module, const CheckpointOptions& options) {
  torch::nn::Module& target = nn::replacement_of(module);
  nn::set_recomputation(
      target, nn::recomputation_for(target, options, "set_activation_checkpointing"));
}

} // namespace tessera
