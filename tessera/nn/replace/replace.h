#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/nn/replace/replacement_registry.h"

namespace tessera::nn {

/// A module that was replaced by its distributed implementation.
struct ReplacedModule {
  std::string path;
  std::string type; // of the original
  std::shared_ptr<torch::nn::Module> original;
  std::shared_ptr<DistributedModule> module;
  std::shared_ptr<const TpRule> rule;
  /// The original's tensors by name, each once, as long as the replacement has
  /// not taken their values over; then empty handles.
  StateMap tensors;
  int modules_inside = 0;
};

/// A marked module that stayed as it was.
struct KeptModule {
  std::string path;
  std::string type;
  std::string reason;
};

struct Replacements {
  /// The model; another one when the root itself was replaced.
  std::shared_ptr<torch::nn::Module> root;
  std::vector<ReplacedModule> replaced;
  std::vector<KeptModule> kept;
};

/// Makes one distributed module.
using Make = std::function<std::shared_ptr<DistributedModule>()>;

/// Replaces every module of a model that (1) has a distributed implementation,
/// (2) is marked, (3) is not inside a module that is replaced, and (4) shares
/// no parameter with a module outside of it. A module whose sizes do not divide
/// stays, and those inside it are looked at. The distributed modules have
/// values of their own until `take_over`.
///
/// `whole`: paths of marked modules that stay as they are, with all inside them.
/// `divided`: paths of modules that must be divided, or lie inside of one that is.
/// `around` runs the making of a distributed module; it may delay its
/// parameters as the original's are, and keeps the random numbers.
/// Not collective, but all ranks of a TP_GROUP come to the same result.
/// Threads: step thread only.
/// Throws: ConfigError for an option of a scope that no module took, and for a path of `whole`
/// or `divided` that names no module that could stay whole or is divided.
/// Source: Karakus et al. 2021, section 5.2.
Replacements replace_marked(
    const std::shared_ptr<torch::nn::Module>& root,
    const std::set<std::string>& whole,
    const std::function<
        std::shared_ptr<DistributedModule>(const torch::nn::Module& original, const Make& make)>&
        around,
    const std::set<std::string>& divided = {});

/// Lines for people, one for each group of modules that are alike; modules
/// inside replaced ones are counted with these:
///   h.* (GptBlock, 4 modules): DistributedTransformerLayer
///   lm_head (TiedLinear): not distributed, has no distributed implementation
std::vector<std::string> text_of(const Replacements& replacements);

/// Gives a distributed module the values of the original, which rank 0 of the
/// TP_GROUP broadcasts, and frees the original's. Delayed tensors must have
/// memory by now. Collective over the TP_GROUP. Threads: step thread only.
void take_over(ReplacedModule& replaced);

/// What is inside a distributed module stays with it on one pipeline rank,
/// since its forward may reach parts past their holders; but children of a
/// Sequential may go where they like. Not collective.
void keep_parts_together(const torch::nn::Module& root);

/// Parameters and buffers of a module and those inside it by name, each tensor
/// once, under its first name.
StateMap named_state(const torch::nn::Module& module);

/// The shard of every parameter inside `module` that this rank holds, by name;
/// parameters and buffers that are not distributed are whole.
struct LocalTensor {
  at::Tensor tensor;
  Shard shard;
  bool distributed = false;
  bool scaled_batch = false;
  bool parameter = true;
};
std::map<std::string, LocalTensor> local_tensors(const torch::nn::Module& module);

} // namespace tessera::nn
