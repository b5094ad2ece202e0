#include "tessera/operations/capture/replay.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/stopwatch.h"
#include "tessera/operations/capture/code.h"

namespace tessera::operations {

namespace {

template <typename Visit>
void for_each_value(const Call& call, Visit&& visit) {
  for (const auto* codes : {&call.arguments, &call.results}) {
    for (const c10::IValue& code : *codes) {
      for_each_number(code, visit);
    }
  }
  for (const int value : call.renewed) {
    visit(value);
  }
}

} // namespace

Replay::Replay(Part part) : part_(std::move(part)) {
  std::set<int> needed(part_.gives.begin(), part_.gives.end());
  const auto count = [&](int value) { values_ = std::max(values_, value + 1); };
  std::for_each(part_.takes.begin(), part_.takes.end(), count);
  for (const Call& call : part_.calls) {
    const auto found = c10::Dispatcher::singleton().findSchema({call.op, call.overload});
    if (!found) {
      throw PlanError(str("no operator ", call.op, " ", call.overload, " in this libtorch"));
    }
    operators_.push_back(*found);
    for_each_value(call, count);
  }
  last_use_.resize(part_.calls.size());
  for (std::size_t i = part_.calls.size(); i-- > 0;) {
    for_each_value(part_.calls[i], [&](int value) {
      if (needed.insert(value).second) {
        last_use_[i].push_back(value);
      }
    });
  }
  sizes_.resize(values_, nullptr);
  for (const auto& [value, sizes] : part_.sizes) {
    sizes_.at(value) = &sizes;
  }
}

std::vector<at::Tensor> Replay::run(
    const std::vector<at::Tensor>& taken,
    const std::function<at::Tensor(const std::string&)>& variable,
    std::vector<double>* seconds) const {
  std::vector<at::Tensor> values(values_);
  for (std::size_t i = 0; i < part_.takes.size(); ++i) {
    values.at(part_.takes[i]) = taken.at(i);
  }
  for (const auto& [value, name] : part_.variables) {
    values.at(value) = variable(name);
  }
  for (std::size_t i = 0; i < part_.calls.size(); ++i) {
    const Call& call = part_.calls[i];
    const c10::FunctionSchema& schema = operators_[i].schema();
    torch::jit::Stack stack;
    for (std::size_t k = 0; k < call.arguments.size(); ++k) {
      stack.push_back(decode(
          call.arguments[k], schema.arguments()[k].type(), [&](int v) { return values[v]; }));
    }
    const at::AutoGradMode grad_mode(at::GradMode::is_enabled() && !call.no_grad);
    const auto begin = Clock::now();
    operators_[i].callBoxed(&stack);
    if (seconds != nullptr) {
      seconds->push_back(seconds_since(begin));
    }
    for (std::size_t k = 0; k < call.renewed.size(); k += 2) {
      values[call.renewed[k + 1]] = values[call.renewed[k]];
    }
    for (std::size_t r = 0; r < call.results.size(); ++r) {
      for_each_number(call.results[r], stack.at(r), [&](int value, const at::Tensor& tensor) {
        // A tensor of another rank comes without its strides, so a copy may be none here.
        bool shares = false;
        for (const c10::IValue& argument : call.arguments) {
          for_each_number(argument, [&](int v) {
            shares = shares || (values[v].defined() && values[v].is_alias_of(tensor));
          });
        }
        values[value] = call.copies && shares ? tensor.clone() : tensor;
        const auto* sizes = sizes_[value];
        if (sizes != nullptr && tensor.sizes() != *sizes) {
          throw UserError(tessera::str(
              "partition_mode \"operations\": operation ",
              part_.positions[i],
              " of the model's forward, ",
              call.op,
              ", made a tensor of ",
              tensor.sizes(),
              ", and one of ",
              at::IntArrayRef(*sizes),
              " was recorded: its shape depends on numbers"));
        }
      });
    }
    for (const int value : last_use_[i]) {
      values[value] = at::Tensor();
    }
  }
  std::vector<at::Tensor> gives;
  for (const int value : part_.gives) {
    gives.push_back(values.at(value));
  }
  return gives;
}

} // namespace tessera::operations
