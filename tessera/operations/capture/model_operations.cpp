#include "tessera/operations/capture/model_operations.h"

#include <algorithm>
#include <sstream>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/tensor/value.h"

namespace tessera::operations {

/// Stands for the operations of one pp rank in the module table.
struct ModelOperations::Target : torch::nn::Module {
  explicit Target(ModelOperations& of) : operations(of) {}

  static c10::IValue invoke(torch::nn::Module& module, const c10::IValue& args, int, int) {
    return dynamic_cast<Target&>(module).operations.serve(args);
  }
  static const nn::CallKey key;

  ModelOperations& operations;
};

const nn::CallKey ModelOperations::Target::key =
    nn::register_invoker("tessera::operations", &ModelOperations::Target::invoke);

/// What one rank runs in one go, and whether it has been told what that is.
struct ModelOperations::StagePlan {
  int rank = 0;
  Part part;
  std::unique_ptr<Replay> here; // nullptr: of another rank
  bool told = false;
};

/// A kind of call that was recorded.
struct ModelOperations::Known {
  int number = 0;
  Program program;
  std::vector<StagePlan> stages; // empty: not planned
};

namespace {

// What a request carries beside the tensors: program, stage and, the first time, the part.
using Request = std::tuple<int, int, c10::IValue, std::vector<at::Tensor>>;

void describe(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      out << "undefined";
      return;
    }
    out << tensor.scalar_type() << tensor.sizes() << tensor.strides() << tensor.device();
  } else if (value.isTuple()) {
    out << '(';
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      describe(out, element);
      out << ';';
    }
    out << ')';
  } else if (value.isList()) {
    out << '[';
    for (const c10::IValue& element : value.toListRef()) {
      describe(out, element);
      out << ';';
    }
    out << ']';
  } else if (value.isGenericDict()) {
    out << '{';
    for (const auto& entry : value.toGenericDict()) {
      describe(out, entry.key());
      out << ':';
      describe(out, entry.value());
      out << ';';
    }
    out << '}';
  } else if (value.isString()) {
    out << value.toStringRef().size() << '"' << value.toStringRef();
  } else {
    out << value;
  }
}

} // namespace

void refuse_recomputed(const torch::nn::Module& module, const std::string& name) {
  // A module whose parts are on several ranks is marked only: no call of it would be recomputed.
  if (nn::recomputation_of(module) || nn::marked_recomputation(module)) {
    throw ConfigError(
        str("activation checkpointing (of module '",
            name,
            "') and partition_mode \"operations\" exclude each other, because modules are not "
            "called; leave one of them out"));
  }
}

ModelOperations::ModelOperations(
    std::shared_ptr<torch::nn::Module> root,
    std::string name,
    CutOptions options,
    bool timed)
    : root_(std::move(root)), name_(std::move(name)), options_(std::move(options)), timed_(timed) {
  for (int rank = 0; rank < options_.parts; ++rank) {
    targets_.push_back(std::make_shared<Target>(*this));
  }
}

ModelOperations::~ModelOperations() = default;

const VariableTable& ModelOperations::variables() {
  if (variables_ == nullptr) {
    variables_ = std::make_unique<VariableTable>(variables_of(*root_));
  }
  return *variables_;
}

std::string ModelOperations::kind_of(const c10::IValue& arguments) const {
  std::ostringstream text;
  text << (root_->is_training() ? "t" : "e") << (at::GradMode::is_enabled() ? "g" : "n");
  describe(text, arguments);
  return text.str();
}

c10::IValue ModelOperations::call(const c10::IValue& arguments, const Forward& forward) {
  std::unique_ptr<Known>& known = known_[kind_of(arguments)];
  Capture capture(variables(), known == nullptr ? nullptr : &known->program);
  try {
    capture.run(arguments, forward);
  } catch (...) {
    if (known == nullptr) {
      known_.erase(kind_of(arguments));
    }
    throw;
  }
  if (known == nullptr) {
    auto made = std::make_unique<Known>();
    made->program = capture.take_program();
    try {
      check_ranks(made->program);
    } catch (...) {
      known_.erase(kind_of(arguments));
      throw;
    }
    made->number = next_number_++;
    known = std::move(made);
    if (pp_rank_ < 0) {
      recorded_.push_back(&known->program);
    }
  }
  std::vector<at::Tensor> values = capture.given();
  values.resize(known->program.values.size());
  pp_rank_ < 0 ? run_here(*known, values) : run_stages(*known, values);
  return capture.result([&](int value) { return values.at(value); });
}

namespace {

std::vector<int> made_outside(const Program& program) {
  std::vector<int> values;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    if (program.values[v].source == ProgramValue::Source::kInput ||
        program.values[v].source == ProgramValue::Source::kGiven) {
      values.push_back(static_cast<int>(v));
    }
  }
  return values;
}

std::vector<at::Tensor> tensors_of(
    const std::vector<at::Tensor>& values,
    const std::vector<int>& numbers) {
  std::vector<at::Tensor> tensors;
  for (const int number : numbers) {
    tensors.push_back(values.at(number));
  }
  return tensors;
}

void keep(
    const std::vector<at::Tensor>& tensors,
    const std::vector<int>& numbers,
    std::vector<at::Tensor>& values) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    values.at(numbers[i]) = tensors.at(i);
  }
}

} // namespace

// The model is whole on this rank, and is looked at.
void ModelOperations::run_here(Known& known, std::vector<at::Tensor>& values) {
  const Program& program = known.program;
  std::vector<int> all;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    all.push_back(static_cast<int>(i));
  }
  std::vector<int> gives;
  for (const int value : program.results) {
    if (program.values[value].source == ProgramValue::Source::kResult) {
      gives.push_back(value);
    }
  }
  const Replay replay(
      make_part(program, variables().list, all, made_outside(program), std::move(gives)));
  const auto variable = [&](const std::string& name) {
    const auto& list = variables().list;
    return std::find_if(
               list.begin(), list.end(), [&](const auto& item) { return item.name == name; })
        ->tensor;
  };
  const std::vector<at::Tensor> taken = tensors_of(values, replay.part().takes);
  if (timed_) { // of several calls the last one counts
    known.program.seconds.clear();
    keep(replay.run(taken, variable, &known.program.seconds), replay.part().gives, values);
  } else {
    keep(replay.run(taken, variable), replay.part().gives, values);
  }
}

void ModelOperations::check_ranks(const Program& program) const {
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const int rank = program.wishes[i].rank;
    if (rank >= options_.parts) {
      throw UserError(
          str("partition_mode \"operations\": ",
              name_of_call(program, i),
              ", is in tessera::partition(",
              rank,
              "); pipeline_parallel_degree is ",
              options_.parts,
              ", so write 0 to ",
              options_.parts - 1));
    }
  }
}

void ModelOperations::for_each_own_variable(
    const std::function<void(const std::string&, int)>& visit) {
  for (const auto& [module, path] : variables().modules) {
    for (const auto& list :
         {module->named_parameters(/*recurse=*/false), module->named_buffers(/*recurse=*/false)}) {
      for (const auto& item : list) {
        const auto variable = variables().index.find(item.value().unsafeGetTensorImpl());
        if (variable != variables().index.end()) {
          visit(path, variable->second);
        }
      }
    }
  }
}

// What the modules of a variable say must be one rank.
std::vector<int> ModelOperations::placed_variables(const std::map<std::string, int>& placed) {
  std::vector<int> rank_of_variable(variables().list.size(), -1);
  std::vector<std::string> said_by(variables().list.size());
  for_each_own_variable([&](const std::string& path, int variable) {
    const auto rank = placed.find(path);
    if (rank == placed.end()) {
      return;
    }
    if (rank_of_variable[variable] >= 0 && rank_of_variable[variable] != rank->second) {
      throw PlanError(
          str("module '",
              said_by[variable],
              "' is placed on rank ",
              rank_of_variable[variable],
              " and module '",
              path,
              "' on rank ",
              rank->second,
              ", but they share '",
              variables().list[variable].name,
              "'; place both on one rank"));
    }
    rank_of_variable[variable] = rank->second;
    said_by[variable] = path;
  });
  return rank_of_variable;
}

// A scope's rank is that of the first graph that it was in.
void ModelOperations::hold_scopes(Graph& graph) const {
  for (const Together& together : graph.together) {
    const auto rank = rank_of_scope_.find(together.name);
    if (together.name.empty() || rank == rank_of_scope_.end()) {
      continue;
    }
    for (const int operation : together.operations) {
      Operation& held = graph.operations[operation];
      if (held.part < 0) {
        held.part = rank->second;
        held.placed_by = together.asked_by + " in an earlier call";
      }
    }
  }
}

void ModelOperations::remember_scopes(
    const Graph& graph,
    const std::vector<int>& part_of_operation) {
  for (const Together& together : graph.together) {
    if (!together.name.empty()) {
      rank_of_scope_.emplace(together.name, part_of_operation[together.operations.front()]);
    }
  }
}

std::map<std::string, int> ModelOperations::divide(const std::map<std::string, int>& placed) {
  if (recorded_.empty()) {
    throw ConfigError(
        str("partition_mode \"operations\": the first step did not call the model '",
            name_,
            "', so its operators are not known; call it as model(x) in every microbatch"));
  }
  const Graph graph = make_graph(recorded_, variables().list, name_);
  const Units units = make_units(graph);
  CutOptions options = options_;
  options.part_of_variable = placed_variables(placed);
  const Cut found = cut(graph, units, options);
  remember_scopes(graph, found.part_of_operation);
  std::map<std::string, int> rank_of_module; // by ModelVariable::module
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    for (const int variable : graph.operations[i].variables) {
      rank_of_module[graph.variables[variable].module] = found.part_of_operation[i];
    }
  }
  std::map<std::string, int> result;
  for_each_own_variable([&](const std::string& path, int variable) {
    const auto rank = rank_of_module.find(variables().list[variable].module);
    if (rank != rank_of_module.end()) {
      result[path] = rank->second;
    }
  });
  summary_ =
      str(graph.operations.size(),
          " operations in ",
          found.groups,
          " groups, ",
          make_stages(graph, units, found.part_of_operation).size(),
          " stages, ",
          found.crossing_bytes,
          " bytes between ranks in a forward");
  return result;
}

void ModelOperations::place(
    int pp_rank,
    std::function<int(const std::string&)> owner_of,
    std::function<at::Tensor(const std::string&)> tensor_of) {
  pp_rank_ = pp_rank;
  owner_of_ = std::move(owner_of);
  tensor_of_ = std::move(tensor_of);
  recorded_.clear();
}

void ModelOperations::plan(Known& known) {
  const Program& program = known.program;
  Graph graph = make_graph({&program}, variables_->list, name_);
  hold_scopes(graph);
  const Units units = make_units(graph);
  CutOptions options = options_;
  for (const ModelVariable& variable : variables_->list) {
    options.part_of_variable.push_back(owner_of_(variable.name));
  }
  const Cut found = cut(graph, units, options);
  remember_scopes(graph, found.part_of_operation);
  for (const Stage& stage : make_stages(graph, units, found.part_of_operation)) {
    StagePlan& made = known.stages.emplace_back();
    made.rank = stage.part;
    made.part = make_part(program, variables_->list, stage.operations, stage.takes, stage.gives);
    if (stage.part == pp_rank_) {
      made.here = std::make_unique<Replay>(made.part);
    }
  }
}

void ModelOperations::run_stages(Known& known, std::vector<at::Tensor>& values) {
  if (known.stages.empty()) {
    plan(known);
  }
  for (std::size_t s = 0; s < known.stages.size(); ++s) {
    const StagePlan& stage = known.stages[s];
    const std::vector<at::Tensor> taken = tensors_of(values, stage.part.takes);
    keep(
        stage.here != nullptr ? stage.here->run(taken, tensor_of_) : ask(known, s, taken),
        stage.part.gives,
        values);
  }
}

// A part is sent until an answer has shown that its rank has it.
std::vector<at::Tensor>
ModelOperations::ask(Known& known, std::size_t stage, const std::vector<at::Tensor>& taken) {
  StagePlan& plan = known.stages[stage];
  const Request request(
      known.number, static_cast<int>(stage), plan.told ? c10::IValue() : pack(plan.part), taken);
  nn::Interceptor* interceptor = nn::current_interceptor();
  TESSERA_CHECK(interceptor != nullptr, "a model of several ranks is called outside a step");
  const c10::IValue answer =
      interceptor->call(*targets_.at(plan.rank), Target::key, pack(request), -1, -1);
  plan.told = true;
  return unpack<std::vector<at::Tensor>>(answer);
}

c10::IValue ModelOperations::serve(const c10::IValue& request) {
  const auto [program, stage, part, taken] = unpack<Request>(request);
  std::unique_ptr<Replay>& replay = served_[{program, stage}];
  if (!part.isNone()) {
    replay = std::make_unique<Replay>(unpack<Part>(part));
  }
  TESSERA_CHECK(replay != nullptr, "stage ", stage, " of program ", program, " was never sent");
  return pack(replay->run(taken, tensor_of_));
}

} // namespace tessera::operations
