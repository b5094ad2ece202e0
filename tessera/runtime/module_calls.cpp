#include "tessera/runtime/module_calls.h"

#include <optional>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/runtime/autograd_modes.h"
#include "tessera/runtime/ordered_backward.h"
#include "tessera/runtime/random_count.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

Task& current_task(const char* what) {
  Worker* worker = Worker::current();
  if (worker == nullptr) {
    throw UserError(str(what, " reaches another rank, so it must be called inside a step"));
  }
  if (worker->task()->cancelled) {
    throw StepCancelled();
  }
  return *worker->task();
}

ModuleMode mode_of(const torch::nn::Module& module) {
  return module.is_training() ? ModuleMode::kTraining : ModuleMode::kEvaluation;
}

void check_mode(const torch::nn::Module& module, ModuleMode asked) {
  if (asked == ModuleMode::kUnchecked || asked == mode_of(module)) {
    return;
  }
  const bool training = asked == ModuleMode::kTraining;
  throw UserError(
      str("the module is in ",
          training ? "evaluation" : "training",
          " mode here and in ",
          training ? "training" : "evaluation",
          " mode on the rank that calls it: train() or eval() ran on one rank only, as it does "
          "inside a step; call it outside, where all ranks do"));
}

/// Finds tensors that are changed in place during its life.
class InPlaceCheck {
 public:
  explicit InPlaceCheck(const c10::IValue& value) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      versions_.emplace_back(tensor, tensor._version());
    });
  }
  void check() const {
    for (const auto& [tensor, version] : versions_) {
      if (tensor._version() != version) {
        throw UserError(
            "the module changed one of its inputs in place; its caller is on "
            "another rank and cannot see that: use the out-of-place form");
      }
    }
  }

 private:
  std::vector<std::pair<at::Tensor, std::uint32_t>> versions_;
};

// Computes what torch::autograd::grad of one process computes between a call's outputs and its
// inputs.
std::vector<at::Tensor> input_gradients(
    const CallRecord& record,
    const std::vector<at::Tensor>& roots,
    const std::vector<at::Tensor>& gradients) {
  TESSERA_CHECK(record.inputs != nullptr, "a gradient was asked of a call without inputs");
  torch::autograd::edge_list from;
  for (const at::Tensor& root : roots) {
    from.push_back(torch::autograd::impl::gradient_edge(root));
  }
  torch::autograd::edge_list to;
  for (std::uint32_t i = 0; i < record.inputs->num_inputs(); ++i) {
    to.emplace_back(record.inputs, i);
  }
  if (from.empty()) {
    return std::vector<at::Tensor>(to.size());
  }
  return torch::autograd::Engine::get_default_engine().execute(
      from, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, to);
}

// The graph above a remote call: its inputs that require a gradient.
torch::autograd::edge_list edges_of(const c10::IValue& args, const RequiresGradMask& mask) {
  torch::autograd::edge_list edges;
  for_each_tensor(args, [&](const at::Tensor& tensor) {
    edges.push_back(
        mask[edges.size()] ? torch::autograd::impl::gradient_edge(tensor)
                           : torch::autograd::Edge());
  });
  return edges;
}

} // namespace

bool ModuleCalls::wants(const torch::nn::Module& module) {
  const int id = context_.modules->id_of(module);
  if (id < 0) {
    context_.modules->check_not_waiting(module);
  }
  return id >= 0 && context_.modules->entries()[id].owner != context_.modules->pp_rank();
}

int ModuleCalls::range_end(const torch::nn::Module& sequential, int first) {
  const ModuleDirectory& modules = *context_.modules;
  if (modules.id_of(sequential) < 0) {
    return first + 1;
  }
  const int owner = modules.owner_of_child(sequential, first);
  const int size = static_cast<int>(sequential.children().size());
  int end = first + 1;
  if (owner != modules.pp_rank()) {
    while (end < size && modules.owner_of_child(sequential, end) == owner) {
      ++end;
    }
  }
  return end;
}

int ModuleCalls::local_end(const torch::nn::Module& sequential, int first) {
  const ModuleDirectory& modules = *context_.modules;
  const int size = static_cast<int>(sequential.children().size());
  if (modules.id_of(sequential) < 0) {
    return size;
  }
  int end = first;
  while (end < size && modules.owner_of_child(sequential, end) == modules.pp_rank()) {
    ++end;
  }
  return end;
}

at::Tensor ModuleCalls::tensor_named(const torch::nn::Module& module, const std::string& name) {
  return context_.modules->table_of(context_.modules->id_of(module)).tensor(name);
}

Fields ModuleCalls::fields_of_call(Task& task, const torch::nn::Module& module) const {
  Fields fields;
  capture_modes(fields);
  fields.serial = step_->work.serial;
  fields.microbatch = task.request.microbatch;
  fields.module = context_.modules->id_of(module);
  fields.module_mode = mode_of(module);
  fields.call = mix(task.id, 16 + task.calls++);
  put_count(fields);
  fields.after_backward = task.request.phase == Phase::kBackward || task.request.after_backward;
  return fields;
}

c10::IValue ModuleCalls::call(
    torch::nn::Module& module,
    const nn::CallKey& key,
    const c10::IValue& args,
    int first,
    int last) {
  Task& task = current_task("a module of another partition");
  const ModuleDirectory& modules = *context_.modules;
  if (const std::string* region = recompute::inside()) {
    throw UserError(
        str(*region,
            " is recomputed in its backward, so all of it must be on one pipeline rank, but it "
            "calls module '",
            modules.name_of(modules.id_of(module)),
            "' on another; take the activation checkpointing of it away, flag smaller modules, or "
            "write a partition that keeps it together"));
  }
  task.shared.check();
  Fields fields = fields_of_call(task, module);
  fields.first = first;
  fields.last = last;
  fields.invoker = key.hash;
  if (const auto how = nn::recomputes() ? nn::CheckpointedCall::of(module) : std::nullopt) {
    fields.recompute_group = how->group;
    fields.recompute_keeps_random = how->preserve_rng_state;
    fields.recompute_keeps_products = how->keeps_products;
  }
  const int owner = first >= 0 ? modules.owner_of_child(module, first)
                               : modules.entries().at(fields.module).owner;
  // This is done with grad mode off as well, because a module may return an input, which keeps its
  // history.
  const RequiresGradMask mask(args);
  step_->exchange->request(task, fields, owner, {args, mask});
  const Content result = step_->exchange->response(task, fields, owner);
  if (result.requires_grad.any()) {
    const RemoteCall made{fields.call, owner, fields.module, fields.microbatch};
    attach_grad_fn(
        result.value,
        result.requires_grad,
        std::make_shared<RemoteBackward>(edges_of(args, mask), mask, *this, made));
  }
  task.shared.add(
      str("module '", modules.name_of(fields.module), "' on rank ", context_.pp_ranks.at(owner)),
      result.shared,
      args,
      result.value);
  return step_->exchange->hand_over(response_message(fields), result.value);
}

std::vector<at::Tensor> ModuleCalls::call_backward(
    const RemoteCall& call,
    const std::vector<at::Tensor>& gradients,
    bool inputs_only) {
  Task& task = current_task("a backward through a module of another partition");
  Fields fields;
  fields.serial = step_->work.serial;
  fields.phase = Phase::kBackward;
  fields.microbatch = call.microbatch;
  fields.module = call.module;
  fields.call = call.id;
  fields.inputs_only = inputs_only;
  put_count(fields);
  step_->exchange->request(task, fields, call.owner, {pack(gradients), {}});
  if (auto* pass = WeightGradientPass::current()) {
    pass->requested();
    task.awaited = pass->defers();
  }
  const Content result = step_->exchange->response(task, fields, call.owner);
  return unpack<std::vector<at::Tensor>>(
      step_->exchange->hand_over(response_message(fields), result.value));
}

c10::IValue ModuleCalls::invoke(const Fields& request, const c10::IValue& args) {
  torch::nn::Module& module = *context_.modules->entries().at(request.module).module;
  check_mode(module, request.module_mode);
  const ModeScope modes(request);
  std::optional<nn::Recomputation> recomputation;
  if (request.recompute_group >= 0) {
    recomputation = nn::Recomputation{
        request.recompute_group,
        request.recompute_keeps_random,
        {},
        request.recompute_keeps_products};
  }
  const nn::CheckpointedCall call(module, recomputation);
  return nn::find_invoker(request.invoker)(
      module,
      step_->exchange->hand_over(request_message(request), args),
      request.first,
      request.last);
}

void ModuleCalls::run_forward(Task& task) {
  const Fields& request = task.request;
  const Content given = step_->exchange->arguments(task);
  CallRecord record;
  if (given.requires_grad.any()) {
    record.inputs = std::make_shared<InputCapture>();
    attach_grad_fn(given.value, given.requires_grad, record.inputs);
  }
  const InPlaceCheck in_place(given.value);
  const c10::IValue result = invoke(request, given.value);
  in_place.check();
  task.shared.check();
  const RequiresGradMask mask(result);
  record.outputs = mask.select(result);
  step_->turn_ended(task);
  expect_backward(gradient_order_, record, request.microbatch);
  step_->exchange->respond(task, {result, mask, SharedMemory(given.value, result)});
  if (!record.outputs.empty()) {
    step_->records.emplace(request.call, std::move(record));
  }
}

void ModuleCalls::run_backward(Task& task) {
  const Fields& request = task.request;
  auto found = step_->records.extract(request.call);
  if (found.empty()) {
    throw UserError(
        "backward reached a module call a second time in one step; combine the "
        "losses and call model.backward once");
  }
  CallRecord record = std::move(found.mapped());
  const auto gradients = unpack<std::vector<at::Tensor>>(
      step_->exchange->hand_over(request_message(request), step_->exchange->arguments(task).value));
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> root_gradients;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    if (gradients.at(i).defined()) {
      roots.push_back(record.outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  if (request.inputs_only) {
    respond_inputs_only(task, record, roots, root_gradients);
    return;
  }
  const bool awaited = record.inputs != nullptr;
  OrderedBackward around(gradient_order_, request.microbatch, record, roots, awaited);
  torch::autograd::backward(roots, root_gradients);
  std::vector<at::Tensor> result;
  if (awaited) {
    result = std::move(record.inputs->captured);
    result.resize(record.inputs->num_inputs());
  }
  step_->exchange->respond(task, {pack(result), {}});
  task.responded = true;
  around.catch_up();
}

void ModuleCalls::respond_inputs_only(
    Task& task,
    const CallRecord& record,
    const std::vector<at::Tensor>& roots,
    const std::vector<at::Tensor>& gradients) {
  step_->exchange->respond(task, {pack(input_gradients(record, roots, gradients)), {}});
  task.responded = true;
  if (gradient_order_ != nullptr) {
    gradient_order_->ended(*record.graph); // it adds to no parameter
  }
}

void ModuleCalls::wait_for_schedule(Task& task) {
  using State = schedule::Progress::State;
  State& state = step_->tasks.progress.states.at(task.request.microbatch);
  if (state != State::kForward) {
    return;
  }
  step_->exchange->before_schedule(task);
  state = State::kReady;
  task.awaits = 0;
  step_->turns->forward_ended(task.request.microbatch);
  control_.pause();
}

void ModuleCalls::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) {
  Task& task = current_task("model.backward");
  if (task.kind != Task::Kind::kRoot) {
    throw UserError(
        "model.backward was called inside a module; call it in the step "
        "function");
  }
  task.shared.check();
  wait_for_schedule(task);
  CallRecord whole; // the step function's own graph
  for (const at::Tensor& tensor : tensors) {
    whole.outputs.push_back(step_->exchange->read(tensor).toTensor());
  }
  const std::vector<at::Tensor> roots = whole.outputs;
  expect_backward(gradient_order_, whole, task.request.microbatch);
  OrderedBackward around(gradient_order_, task.request.microbatch, whole, roots, false);
  torch::autograd::backward(roots, gradients);
  around.catch_up();
}

} // namespace tessera::runtime
