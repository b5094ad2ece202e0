#include "tessera/nn/module/operator_layer.h"

#include <typeindex>

#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include "tessera/nn/module/script_class.h"

namespace tessera::nn {

namespace {

template <typename... Layers>
struct Types {
  static bool contain(std::type_index type) {
    return ((type == std::type_index(typeid(Layers))) || ...);
  }
};

using Products = Types<
    torch::nn::LinearImpl,
    torch::nn::BilinearImpl,
    torch::nn::Conv1dImpl,
    torch::nn::Conv2dImpl,
    torch::nn::Conv3dImpl,
    torch::nn::ConvTranspose1dImpl,
    torch::nn::ConvTranspose2dImpl,
    torch::nn::ConvTranspose3dImpl>;
using LookUps = Types<torch::nn::EmbeddingImpl, torch::nn::EmbeddingBagImpl>;
using Norms = Types<
    torch::nn::BatchNorm1dImpl,
    torch::nn::BatchNorm2dImpl,
    torch::nn::BatchNorm3dImpl,
    torch::nn::InstanceNorm1dImpl,
    torch::nn::InstanceNorm2dImpl,
    torch::nn::InstanceNorm3dImpl,
    torch::nn::LayerNormImpl,
    torch::nn::GroupNormImpl>;
using Others = Types<
    torch::nn::PReLUImpl,
    torch::nn::RNNImpl,
    torch::nn::LSTMImpl,
    torch::nn::GRUImpl,
    torch::nn::RNNCellImpl,
    torch::nn::LSTMCellImpl,
    torch::nn::GRUCellImpl>;

} // namespace

bool is_operator_layer(const torch::nn::Module& module) {
  const std::type_index type = script_class(module);
  return Products::contain(type) || LookUps::contain(type) || Norms::contain(type) ||
         Others::contain(type);
}

} // namespace tessera::nn
