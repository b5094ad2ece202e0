#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/nn/module/layers_of_libtorch.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/module/sequential.h"

namespace tessera::nn {

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
