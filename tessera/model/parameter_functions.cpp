#include "tessera/model/parameter_functions.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/tensor/value.h"

namespace tessera::model {

namespace {

void add_term(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined()) {
    sum = sum.defined() ? sum + term : term;
  }
}

// Positive: it travels as a number among the arguments.
std::int64_t digest(const std::string& type) {
  return static_cast<std::int64_t>(std::hash<std::string>()(type) >> 1);
}

} // namespace

/// Stands for the parameters of one pp rank in the module table.
struct ParameterFunctions::Target : torch::nn::Module {
  explicit Target(const ParameterFunctions& of) : functions(of) {}

  static c10::IValue invoke(torch::nn::Module& module, const c10::IValue& args, int, int) {
    const auto [number, type] = unpack<std::tuple<int, std::int64_t>>(args);
    return pack(dynamic_cast<Target&>(module).functions.local_sum(number, type));
  }
  static const nn::CallKey key;

  const ParameterFunctions& functions;
};

const nn::CallKey ParameterFunctions::Target::key =
    nn::register_invoker("tessera::over_parameters", &ParameterFunctions::Target::invoke);

ParameterFunctions::ParameterFunctions() = default;

ParameterFunctions::~ParameterFunctions() = default;

void ParameterFunctions::place(
    runtime::ModuleTable& table,
    const state::StateLayout& layout,
    int pp_size) {
  table_ = &table;
  layout_ = &layout;
  for (int rank = 0; rank < pp_size; ++rank) {
    targets_.push_back(std::make_shared<Target>(*this));
    table.add(str("(the parameters of pp rank ", rank, ")"), *targets_.back(), rank);
  }
}

int ParameterFunctions::add(ParameterTerm term, const std::string& type) {
  auto free = std::find_if(
      functions_.begin(), functions_.end(), [](const Function& f) { return f.term == nullptr; });
  if (free == functions_.end()) {
    free = functions_.emplace(functions_.end());
  }
  *free = {std::move(term), digest(type)};
  return static_cast<int>(free - functions_.begin());
}

void ParameterFunctions::remove(int number) {
  functions_.at(number) = {};
}

at::Tensor ParameterFunctions::sum(int number) const {
  const Function& function = functions_.at(number);
  TESSERA_CHECK(table_ != nullptr, "a sum over parameters before the partition");
  const int here = table_->pp_rank();
  at::Tensor sum;
  for (int rank = 0; rank < static_cast<int>(targets_.size()); ++rank) {
    if (rank == here) {
      add_term(sum, local_sum(number, function.type));
    } else {
      add_term(
          sum,
          unpack<at::Tensor>(nn::current_interceptor()->call(
              *targets_[rank], Target::key, pack(std::make_tuple(number, function.type)), -1, -1)));
    }
  }
  return sum.defined() ? sum : at::zeros({});
}

at::Tensor ParameterFunctions::local_sum(int number, std::int64_t type) const {
  const bool known = number < static_cast<int>(functions_.size()) &&
                     functions_[number].term != nullptr && functions_[number].type == type;
  if (!known) {
    throw UserError(
        "tessera::over_parameters: this rank did not make the function that another rank calls; "
        "make it on every rank, outside the step function and in the same order");
  }
  // A copy: the script may drop its function while a backward is yet to come.
  const ParameterTerm term = functions_[number].term;
  at::Tensor sum;
  for (const auto& [name, parameter] : table_->local_parameters()) {
    if (layout_->in_distributed_module(name)) {
      throw UserError(
          str("tessera::over_parameters: parameter '",
              name,
              "' belongs to a module that tensor parallelism divides, so this rank has a part of "
              "it only, and a sum over parts is not the function of the whole; leave the module "
              "undivided (tessera::set_tensor_parallelism), or regularise in the optimizer "
              "(weight_decay)"));
    }
    add_term(sum, term(name, parameter));
  }
  return sum;
}

// Values do not count while a step is traced, and reading parameters past their modules would tie
// them to the caller's partition.
at::Tensor ParameterFunctions::traced_sum(int number, const torch::nn::Module& root) const {
  const Function& function = functions_.at(number);
  at::Tensor sum;
  std::set<const void*> seen;
  for (const auto& entry : root.named_parameters()) {
    const at::Tensor& parameter = entry.value();
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      const at::Tensor zeros = at::zeros({}, at::dtype(parameter.scalar_type()));
      add_term(sum, function.term(entry.key(), zeros.expand(parameter.sizes())));
    }
  }
  return sum.defined() ? sum : at::zeros({});
}

} // namespace tessera::model
