#include "tessera/operations/capture/program.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/base/error.h"
#include "tessera/operations/capture/code.h"

namespace tessera::operations {

namespace {

std::int64_t bytes_of(const ProgramValue& value) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(value.dtype));
  for (const std::int64_t size : value.sizes) {
    bytes *= size;
  }
  return bytes;
}

/// Appends one program to a graph.
class Append {
 public:
  Append(Graph& graph, const Program& program, const std::vector<ModelVariable>& variables)
      : graph_(graph),
        program_(program),
        variables_(variables),
        first_(static_cast<int>(graph.operations.size())),
        first_tensor_(static_cast<int>(graph.tensors.size())) {
    for (const ProgramValue& value : program.values) {
      graph.tensors.push_back({-1, bytes_of(value)});
      if (value.source == ProgramValue::Source::kVariable) {
        variable_of_memory_[value.memory] = value.variable;
      }
    }
  }

  void run() {
    for (std::size_t i = 0; i < program_.calls.size(); ++i) {
      add(i);
    }
    for (const int value : program_.results) {
      graph_.results.push_back(tensor_of(value));
    }
    keep_changes_together();
    add_scopes();
  }

 private:
  int tensor_of(int value) const {
    return first_tensor_ + value;
  }

  void add(std::size_t i) {
    const Call& call = program_.calls[i];
    const int position = first_ + static_cast<int>(i);
    Operation operation;
    operation.name = call.op;
    operation.layer = program_.layers[i];
    operation.module = program_.modules[i];
    const nn::OperatorWish& wish = program_.wishes[i];
    if (wish.rank >= 0) {
      operation.part = wish.rank;
      operation.placed_by = str("tessera::partition(", wish.rank, ")");
    }
    for (const nn::ScopeName& scope : wish.together) {
      together_[scope].push_back(position);
    }
    operation.seconds = program_.seconds.empty() ? 0 : program_.seconds[i];
    for (const c10::IValue& argument : call.arguments) {
      for_each_number(argument, [&](int value) { read(operation, position, value); });
    }
    for (const c10::IValue& result : call.results) {
      for_each_number(result, [&](int value) { make(operation, position, value); });
    }
    for (std::size_t k = 0; k < call.renewed.size(); k += 2) {
      make(operation, position, call.renewed[k + 1]);
      last_change_[program_.values[call.renewed[k]].memory] = position;
    }
    if (draws_random_numbers(call.op, call.overload)) {
      if (last_random_ >= 0) {
        operation.after.push_back(last_random_);
      }
      last_random_ = position;
    }
    graph_.operations.push_back(std::move(operation));
  }

  void read(Operation& operation, int position, int value) {
    const ProgramValue& info = program_.values[value];
    touches_[info.memory].push_back(position);
    if (info.source != ProgramValue::Source::kVariable) {
      operation.reads.push_back(tensor_of(value));
    }
    // A view of a variable (the transposed weight of a Linear) stays with it.
    const auto of_memory = variable_of_memory_.find(info.memory);
    if (of_memory == variable_of_memory_.end()) {
      return;
    }
    const int variable = of_memory->second;
    if (std::find(operation.variables.begin(), operation.variables.end(), variable) ==
        operation.variables.end()) {
      operation.variables.push_back(variable);
    }
    // An operator may change a buffer without saying so.
    if (variables_.at(variable).buffer) {
      const auto [last, first] = last_use_.emplace(variable, position);
      if (!first && last->second != position) {
        operation.after.push_back(std::exchange(last->second, position));
      }
    }
  }

  void make(Operation& operation, int position, int value) {
    const int tensor = tensor_of(value);
    if (program_.values[value].source == ProgramValue::Source::kVariable) {
      return; // a buffer, changed in place
    }
    if (graph_.tensors[tensor].producer != position) {
      graph_.tensors[tensor].producer = position;
      operation.makes.push_back(tensor);
    }
  }

  // All that uses one memory up to its last change runs in one go, and later uses come after.
  void keep_changes_together() {
    for (const auto& [memory, last] : last_change_) {
      std::vector<int> before{last};
      for (const int position : touches_[memory]) {
        if (position <= last) {
          before.push_back(position);
        } else {
          graph_.operations[position].after.push_back(last);
        }
      }
      for (int i = first_; i <= last; ++i) {
        for (const int tensor : graph_.operations[i].makes) {
          if (program_.values[tensor - first_tensor_].memory == memory) {
            before.push_back(i);
          }
        }
      }
      graph_.inseparable.push_back(std::move(before));
    }
  }

  // A scope that another program has too, under a name, is one with that.
  void add_scopes() {
    for (auto& entry : together_) {
      const nn::ScopeName& scope = entry.first;
      std::vector<int>& operations = entry.second;
      const auto known =
          std::find_if(graph_.together.begin(), graph_.together.end(), [&](const Together& other) {
            return !scope.name.empty() && other.name == scope.name;
          });
      if (known == graph_.together.end()) {
        graph_.together.push_back({std::move(operations), nn::text_of(scope), scope.name});
      } else {
        known->operations.insert(known->operations.end(), operations.begin(), operations.end());
      }
    }
  }

  Graph& graph_;
  const Program& program_;
  const std::vector<ModelVariable>& variables_;
  std::map<nn::ScopeName, std::vector<int>> together_;
  int first_;
  int first_tensor_;
  std::map<int, std::vector<int>> touches_; // operations by memory
  std::map<int, int> last_change_; // operation by memory
  std::map<int, int> variable_of_memory_;
  std::map<int, int> last_use_; // of buffers
  int last_random_ = -1;
};

} // namespace

bool draws_random_numbers(const std::string& op, const std::string& overload) {
  if (op.starts_with("aten::lstm") || op.starts_with("aten::gru") || op.starts_with("aten::rnn")) {
    return true; // dropout between layers
  }
  const auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
  if (!handle) {
    return false;
  }
  const auto& arguments = handle->schema().arguments();
  return handle->hasTag(at::Tag::nondeterministic_seeded) ||
         op.find("dropout") != std::string::npos ||
         std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
           return argument.name() == "generator";
         });
}

Graph make_graph(
    const std::vector<const Program*>& programs,
    const std::vector<ModelVariable>& variables,
    const std::string& name) {
  Graph graph;
  graph.name = name;
  for (const ModelVariable& variable : variables) {
    graph.variables.push_back(
        {variable.name,
         variable.module,
         variable.tensor.numel() * static_cast<std::int64_t>(variable.tensor.element_size())});
  }
  for (const Program* program : programs) {
    Append(graph, *program, variables).run();
  }
  return graph;
}

Part make_part(
    const Program& program,
    const std::vector<ModelVariable>& variables,
    const std::vector<int>& operations,
    std::vector<int> takes,
    std::vector<int> gives) {
  Part part;
  part.takes = std::move(takes);
  part.gives = std::move(gives);
  std::set<int> known;
  const auto note_variable = [&](int value) {
    const ProgramValue& info = program.values[value];
    if (info.source == ProgramValue::Source::kVariable && known.insert(value).second) {
      part.variables.emplace_back(value, variables.at(info.variable).name);
    }
  };
  for (const int operation : operations) {
    const Call& call = program.calls.at(operation);
    part.calls.push_back(call);
    part.positions.push_back(operation);
    for (const c10::IValue& argument : call.arguments) {
      for_each_number(argument, note_variable);
    }
    for (const c10::IValue& result : call.results) {
      for_each_number(
          result, [&](int value) { part.sizes.emplace_back(value, program.values[value].sizes); });
    }
  }
  return part;
}

std::string name_of_call(const Program& program, std::size_t call) {
  const std::string& module = program.modules.at(call);
  return str(
      "operation ",
      call,
      " of the model's forward, ",
      program.calls.at(call).op,
      module.empty() ? std::string() : str(" (in '", module, "')"));
}

} // namespace tessera::operations
