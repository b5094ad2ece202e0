#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/nn/module/operation_scopes.h"
#include "tessera/operations/graph.h"

namespace tessera::operations {

/// A tensor of a recorded forward, by its number in the program.
struct ProgramValue {
  enum class Source {
    kInput, // an argument of the model
    kGiven, // another tensor that the forward used: made beside the operators, or of its class
    kVariable,
    kResult // of a call
  };
  Source source = Source::kResult;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::ScalarType::Float;
  at::Device device = at::kCPU;
  int variable = -1;
  int memory = -1; // values with one number may share memory
};

/// One call of an operator; it can be sent to another rank.
struct Call {
  std::string op; // "aten::linear"
  std::string overload;
  bool no_grad = false; // the forward had switched gradients off
  bool copies = false; // it may return its argument, but returned a copy
  std::vector<c10::IValue> arguments; // codes, see code.h
  std::vector<c10::IValue> results;
  /// Numbers in pairs: of a value that the call changes in place, and of what it is afterwards.
  std::vector<int> renewed;
};

/// The operators of one forward.
struct Program {
  std::vector<ProgramValue> values;
  std::vector<Call> calls;
  std::vector<std::string> modules; // by call, the innermost module that runs, where known
  std::vector<std::string> layers; // by call, Operation::layer
  std::vector<nn::OperatorWish> wishes; // by call, what the scopes around it ask for
  std::vector<double> seconds; // by call; empty: not measured
  std::vector<int> results; // values that the model returns
};

/// What the model has to offer to its operators.
struct ModelVariable {
  std::string name;
  std::string module; // equal for modules that share a variable
  at::Tensor tensor;
  bool buffer = false;
};

/// Returns the programs side by side as one graph of operations, in their order. Value v of the
/// first one is tensor v. Graph::together are the programs' scopes: those of one name are one.
Graph make_graph(
    const std::vector<const Program*>& programs,
    const std::vector<ModelVariable>& variables,
    const std::string& name);

/// What one rank runs in one go, as it is sent to it.
struct Part {
  std::vector<Call> calls;
  std::vector<int> positions; // of the calls in the program, for messages
  std::vector<int> takes; // values that are given to it
  std::vector<int> gives; // values that it returns
  std::vector<std::pair<int, std::string>> variables; // values that are variables, by name
  std::vector<std::pair<int, std::vector<std::int64_t>>> sizes; // of what the calls make
};

/// Returns the part of these operations, in this order.
Part make_part(
    const Program& program,
    const std::vector<ModelVariable>& variables,
    const std::vector<int>& operations,
    std::vector<int> takes,
    std::vector<int> gives);

/// "operation 12 of the model's forward, aten::tanh (in 'layers.2')".
std::string name_of_call(const Program& program, std::size_t call);

/// Returns whether an operator draws random numbers.
bool draws_random_numbers(const std::string& op, const std::string& overload);

} // namespace tessera::operations
