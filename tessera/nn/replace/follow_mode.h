#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

namespace tessera::nn {

/// Makes train() and eval() of a replaced module reach its replacement, in the order in which a
/// script says them: a call of the module's parent reaches the replacement, which is its child, and
/// a call by the script's own holder reaches the original, which passes it on from here.
///
/// libtorch has no hook for train(), so the original and the modules inside it get a child without
/// parameters that listens, named "tessera_mode".
/// Not collective. Threads: step thread only.
void follow_mode(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement);

/// Whether a part of a replaced module was told another mode than the replacement has, which is one
/// module and has one mode.
/// Throws: UserError that names the part. Does nothing for a module that `follow_mode` has not
/// seen.
void check_mode(const torch::nn::Module& original, const std::string& path);

} // namespace tessera::nn
