#pragma once

#include <string>
#include <vector>

namespace tessera::models {

/// The functions between the products of an MLP that there are here, under the
/// names that transformers' configurations have for them. Several names are
/// one function: "gelu_new", "gelu_fast", "gelu_accurate" and
/// "gelu_pytorch_tanh" are GELU by tanh, "gelu" and "gelu_python" are GELU by
/// erf, "swish" is "silu".
const std::vector<std::string>& activation_names();

} // namespace tessera::models
