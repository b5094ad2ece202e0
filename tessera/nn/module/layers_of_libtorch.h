#pragma once

// Not torch/nn/modules.h, which does not compile by itself.
#include <torch/nn.h>

#include "tessera/nn/module/module.h"

/// Holders of libtorch's own layers whose calls the runtime can see: `tessera::nn::Conv2d` in place
/// of `torch::nn::Conv2d`. A layer with one operator a call (nn/operator_layer.h) can live on
/// another rank in a holder of libtorch as well; with these a whole layer is one request, and those
/// that use their parameters in several operators (MultiheadAttention, TransformerEncoderLayer) can
/// be placed at all.
namespace tessera::nn {

// One row a kind of layer.
// clang-format off
#define TESSERA_FOR_EACH_LAYER(X) \
  X(Identity) X(Linear) X(Bilinear) X(Flatten) X(Unflatten) X(Functional) \
  X(Conv1d) X(Conv2d) X(Conv3d) X(ConvTranspose1d) X(ConvTranspose2d) X(ConvTranspose3d) \
  X(Embedding) X(EmbeddingBag) \
  X(BatchNorm1d) X(BatchNorm2d) X(BatchNorm3d) \
  X(InstanceNorm1d) X(InstanceNorm2d) X(InstanceNorm3d) \
  X(LayerNorm) X(GroupNorm) X(LocalResponseNorm) X(CrossMapLRN2d) \
  X(Dropout) X(Dropout2d) X(Dropout3d) X(AlphaDropout) X(FeatureAlphaDropout) \
  X(AvgPool1d) X(AvgPool2d) X(AvgPool3d) X(MaxPool1d) X(MaxPool2d) X(MaxPool3d) \
  X(AdaptiveAvgPool1d) X(AdaptiveAvgPool2d) X(AdaptiveAvgPool3d) \
  X(AdaptiveMaxPool1d) X(AdaptiveMaxPool2d) X(AdaptiveMaxPool3d) \
  X(MaxUnpool1d) X(MaxUnpool2d) X(MaxUnpool3d) X(FractionalMaxPool2d) X(FractionalMaxPool3d) \
  X(LPPool1d) X(LPPool2d) \
  X(ReflectionPad1d) X(ReflectionPad2d) X(ReflectionPad3d) X(ZeroPad2d) \
  X(ReplicationPad1d) X(ReplicationPad2d) X(ReplicationPad3d) \
  X(ConstantPad1d) X(ConstantPad2d) X(ConstantPad3d) \
  X(ELU) X(SELU) X(CELU) X(GELU) X(GLU) X(ReLU) X(ReLU6) X(RReLU) X(PReLU) X(LeakyReLU) \
  X(SiLU) X(Mish) X(Sigmoid) X(Tanh) X(Tanhshrink) X(Threshold) X(Hardshrink) X(Hardtanh) \
  X(LogSigmoid) X(Softplus) X(Softshrink) X(Softsign) \
  X(Softmax) X(Softmax2d) X(Softmin) X(LogSoftmax) \
  X(Fold) X(Unfold) X(Upsample) X(PixelShuffle) X(PixelUnshuffle) \
  X(RNN) X(LSTM) X(GRU) X(RNNCell) X(LSTMCell) X(GRUCell) \
  X(MultiheadAttention) X(Transformer) X(TransformerEncoder) X(TransformerDecoder) \
  X(TransformerEncoderLayer) X(TransformerDecoderLayer) \
  X(CosineSimilarity) X(PairwiseDistance) X(AdaptiveLogSoftmaxWithLoss)
// clang-format on

#define TESSERA_LAYER(Name) using Name = Module<torch::nn::Name##Impl>;
TESSERA_FOR_EACH_LAYER(TESSERA_LAYER)
#undef TESSERA_LAYER

} // namespace tessera::nn
