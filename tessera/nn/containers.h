#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>

#include "tessera/nn/module.h"
#include "tessera/nn/sequential.h"

/// Holders of torch's own layers that the runtime can place on any rank. A
/// layer kept in a holder of torch's own is simply part of its parent.
namespace tessera::nn {

using Linear = Module<torch::nn::LinearImpl>;
using Embedding = Module<torch::nn::EmbeddingImpl>;
using LayerNorm = Module<torch::nn::LayerNormImpl>;
using BatchNorm1d = Module<torch::nn::BatchNorm1dImpl>;
using BatchNorm2d = Module<torch::nn::BatchNorm2dImpl>;
using Conv1d = Module<torch::nn::Conv1dImpl>;
using Conv2d = Module<torch::nn::Conv2dImpl>;
using MaxPool2d = Module<torch::nn::MaxPool2dImpl>;
using AdaptiveAvgPool2d = Module<torch::nn::AdaptiveAvgPool2dImpl>;
using Flatten = Module<torch::nn::FlattenImpl>;
using Identity = Module<torch::nn::IdentityImpl>;
using Dropout = Module<torch::nn::DropoutImpl>;
using ReLU = Module<torch::nn::ReLUImpl>;
using GELU = Module<torch::nn::GELUImpl>;
using Tanh = Module<torch::nn::TanhImpl>;
using Sigmoid = Module<torch::nn::SigmoidImpl>;
using SiLU = Module<torch::nn::SiLUImpl>;

/// Registered children of one type, called by the parent: `for (auto& block :
/// *blocks) x = block(x);`. Children are named "0", "1", ...; the list itself
/// is never called.
template <typename Holder>
class ModuleListImpl : public torch::nn::Module {
 public:
  void push_back(Holder holder) {
    register_module(std::to_string(items_.size()), holder.ptr());
    items_.push_back(std::move(holder));
  }
  Holder& operator[](std::size_t index) {
    return items_.at(index);
  }
  std::size_t size() const {
    return items_.size();
  }
  auto begin() {
    return items_.begin();
  }
  auto end() {
    return items_.end();
  }

 private:
  std::vector<Holder> items_;
};

template <typename Holder>
class ModuleList : public torch::nn::ModuleHolder<ModuleListImpl<Holder>> {
 public:
  using torch::nn::ModuleHolder<ModuleListImpl<Holder>>::ModuleHolder;
};

/// Runs its children in order; see SequentialImpl.
class Sequential : public tessera::Module<SequentialImpl> {
 public:
  using tessera::Module<SequentialImpl>::Module;
  Sequential() : tessera::Module<SequentialImpl>(std::make_shared<SequentialImpl>()) {}
};

} // namespace tessera::nn
