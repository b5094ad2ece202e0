#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/runtime/module_table.h"
#include "tessera/state/layout.h"

namespace tessera::model {

/// What a script adds up over parameters: the term of one of them, by its path in the model; an
/// undefined tensor for a parameter that has none.
using ParameterTerm = std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

/// The functions of parameters that a model's ranks know, and the sums of their terms over the
/// ranks of a pipeline. Each pp rank has a module without parameters in the module table; a call of
/// it sums the terms of what that rank owns, and travels as every call of a module does.
/// Threads: `add` and `remove` step thread only; sums also in tasks.
class ParameterFunctions {
 public:
  ParameterFunctions();
  ~ParameterFunctions();
  ParameterFunctions(const ParameterFunctions&) = delete;
  ParameterFunctions& operator=(const ParameterFunctions&) = delete;

  /// After the partition: adds one call target for each pp rank. Both arguments outlive this.
  void place(runtime::ModuleTable& table, const state::StateLayout& layout, int pp_size);

  /// The function's number: the lowest that is free, so equal on all ranks that make and drop the
  /// same functions in the same order. `type` tells functions of one number apart.
  int add(ParameterTerm term, const std::string& type);
  void remove(int number);

  /// Over all ranks of the pipeline, in their order.
  at::Tensor sum(int number) const;
  /// Over zeros of the shapes of all parameters below `root`, for a step that is traced.
  at::Tensor traced_sum(int number, const torch::nn::Module& root) const;

 private:
  struct Target;
  struct Function {
    ParameterTerm term;
    std::int64_t type = 0;
  };

  /// Over the parameters that this rank owns; undefined when none has a term.
  at::Tensor local_sum(int number, std::int64_t type) const;

  std::vector<Function> functions_;
  std::vector<std::shared_ptr<Target>> targets_; // by pp rank; empty before the partition
  const runtime::ModuleTable* table_ = nullptr;
  const state::StateLayout* layout_ = nullptr;
};

} // namespace tessera::model
