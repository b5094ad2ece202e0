#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include "tessera/nn/module/layers_of_libtorch.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/module.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// Registered children of one type, called by the parent: `for (auto& block :
/// *blocks) x = block(x);`. Children are named "0", "1", ...; the list itself
/// is never called.
template <typename Holder>
class ModuleListImpl : public torch::nn::Cloneable<ModuleListImpl<Holder>> {
 public:
  void push_back(Holder holder) {
    this->register_module(std::to_string(items_.size()), holder.ptr());
    items_.push_back(std::move(holder));
  }
  void reset() override {}
  std::shared_ptr<torch::nn::Module> clone(
      const tessera::TorchOptional<torch::Device>& device = {}) const override {
    auto copy = std::make_shared<ModuleListImpl>();
    for (const Holder& item : items_) {
      using Impl = typename Holder::ContainedType;
      copy->push_back(Holder(std::dynamic_pointer_cast<Impl>(item.ptr()->clone(device))));
    }
    return copy;
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

/// Modules called one after the other, each with what its predecessor returned;
/// a tuple is spread when the next module takes that many arguments. Unlike
/// torch::nn::Sequential its children can live on several ranks, and a run of
/// children on one rank costs one request.
///
/// forward(x...) returns a tensor; forward_as<T>(x...) returns T.
/// Threads: as torch::nn::Module.
/// Source: Karakus et al. 2021, section 4.3.
class SequentialImpl : public torch::nn::Cloneable<SequentialImpl> {
 public:
  SequentialImpl() = default;
  template <typename First, typename... Rest, typename = typename std::decay_t<First>::ImplType>
  explicit SequentialImpl(First&& first, Rest&&... rest) {
    push_back(std::forward<First>(first));
    (push_back(std::forward<Rest>(rest)), ...);
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "tessera::nn::Sequential";
  }
  void reset() override {}
  std::shared_ptr<torch::nn::Module> clone(
      const tessera::TorchOptional<torch::Device>& device = {}) const override;

  /// Appends a child named by its position, or `name`.
  template <typename Holder>
  void push_back(Holder holder) {
    push_back(std::to_string(layers_.size()), std::move(holder));
  }
  template <typename Holder>
  void push_back(std::string name, Holder holder) {
    using Impl = typename Holder::ImplType;
    using Signature = tessera::detail::SignatureOf<Impl>;
    // A holder of torch's own is taken too: its child becomes interceptable.
    mark_interceptable(holder.ptr());
    layers_.push_back({holder.ptr(), &Signature::template Call<Impl>::key, Signature::arity});
    register_module(std::move(name), holder.ptr());
  }

  template <typename... Args>
  torch::Tensor forward(Args&&... args) {
    return forward_as<torch::Tensor>(std::forward<Args>(args)...);
  }
  template <typename Result, typename... Args>
  Result forward_as(Args&&... args) {
    return tessera::unpack<Result>(result_of(run_range(
        tessera::detail::make_tuple_value({tessera::pack<std::decay_t<Args>>(args)...}),
        0,
        static_cast<int>(layers_.size()))));
  }

  /// Runs children [first, last) on a tuple of arguments; returns the tuple of
  /// arguments for child `last`.
  c10::IValue run_range(const c10::IValue& args, int first, int last);

  std::size_t size() const {
    return layers_.size();
  }

 private:
  struct Child {
    std::shared_ptr<torch::nn::Module> module;
    const CallKey* key;
    int arity;
  };
  static c10::IValue result_of(const c10::IValue& args);
  c10::IValue call_child(const Child& child, const c10::IValue& args);
  /// Children [first, last), which are on this rank, in regions of the size that `how` says.
  c10::IValue
  run_recomputed_range(const Recomputation& how, const c10::IValue& args, int first, int last);

  std::vector<Child> layers_;
};

/// Runs its children in order; see SequentialImpl.
class Sequential : public tessera::Module<SequentialImpl> {
 public:
  using tessera::Module<SequentialImpl>::Module;
  Sequential() : tessera::Module<SequentialImpl>(std::make_shared<SequentialImpl>()) {}
};

} // namespace tessera::nn
