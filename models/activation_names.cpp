// Apart from activations.cpp, since what reads options needs no tensor.
#include "models/activation_names.h"

namespace tessera::models {

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> names = {
      "gelu",
      "gelu_10",
      "gelu_accurate",
      "gelu_fast",
      "gelu_new",
      "gelu_python",
      "gelu_pytorch_tanh",
      "leaky_relu",
      "linear",
      "mish",
      "quick_gelu",
      "relu",
      "relu2",
      "relu6",
      "sigmoid",
      "silu",
      "swish",
      "tanh"};
  return names;
}

} // namespace tessera::models
