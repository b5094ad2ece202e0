// The server's side of module calls: sending them, running those of others.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/runtime/call_modes.h"
#include "tessera/runtime/remote_backward.h"
#include "tessera/runtime/server.h"
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

void check_training_mode(const torch::nn::Module& module, const Fields& request) {
  const bool asked = request.training != 0;
  if (module.is_training() != asked) {
    throw UserError(
        str("the module is in ",
            asked ? "evaluation" : "training",
            " mode here and in ",
            asked ? "training" : "evaluation",
            " mode on the rank that calls it: train() or eval() ran on one rank only, as it does "
            "inside a step; call it outside, where all ranks do"));
  }
}

// What torch::autograd::grad of one process computes between a call's outputs and its inputs.
std::vector<torch::Tensor> input_gradients(
    const CallRecord& record,
    const torch::autograd::variable_list& roots,
    const torch::autograd::variable_list& gradients) {
  TESSERA_CHECK(record.inputs != nullptr, "a gradient was asked of a call without inputs");
  torch::autograd::edge_list from;
  for (const torch::Tensor& root : roots) {
    from.push_back(torch::autograd::impl::gradient_edge(root));
  }
  torch::autograd::edge_list to;
  for (std::uint32_t i = 0; i < record.inputs->num_inputs(); ++i) {
    to.emplace_back(record.inputs, i);
  }
  if (from.empty()) {
    return std::vector<torch::Tensor>(to.size());
  }
  return torch::autograd::Engine::get_default_engine().execute(
      from, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, to);
}

/// The engine's surroundings for the backward of a record, ordered or not.
class OrderedBackward {
 public:
  OrderedBackward(
      GradientOrder* order,
      int microbatch,
      CallRecord& record,
      const std::vector<torch::Tensor>& roots,
      const WeightGradientPass::Awaited& awaited)
      : order_(order), graph_(record.graph) {
    if (order_ == nullptr) {
      pass_.emplace(roots, awaited);
      return;
    }
    order_->started(microbatch);
    pass_.emplace(std::move(record.targets), awaited, *order_, graph_);
  }
  void catch_up() {
    pass_->catch_up();
    if (order_ != nullptr) {
      order_->ended(*graph_);
    }
  }

 private:
  GradientOrder* order_;
  GradientOrder::GraphPtr graph_;
  std::optional<WeightGradientPass> pass_;
};

} // namespace

bool Server::wants(const torch::nn::Module& module) {
  const int id = context_.modules->id_of(module);
  if (id < 0) {
    context_.modules->check_not_waiting(module);
  }
  return id >= 0 && context_.modules->entries()[id].owner != context_.modules->pp_rank();
}

int Server::range_end(const torch::nn::Module& sequential, int first) {
  const ModuleDirectory& modules = *context_.modules;
  if (modules.id_of(sequential) < 0) {
    return first + 1;
  }
  const int owner = modules.owner_of_child(sequential, first);
  const int size =
      static_cast<int>(static_cast<const torch::nn::Module&>(sequential).children().size());
  int end = first + 1;
  if (owner != modules.pp_rank()) {
    while (end < size && modules.owner_of_child(sequential, end) == owner) {
      ++end;
    }
  }
  return end;
}

at::Tensor Server::tensor_named(const torch::nn::Module& module, const std::string& name) {
  return context_.modules->table_of(context_.modules->id_of(module)).tensor(name);
}

void Server::wait_for_answer(Task& task, const Fields& fields, int owner) {
  task.awaits = fields.call;
  task.awaits_rank = context_.pp_ranks.at(owner);
  task.awaits_module = fields.module;
  pause();
  task.awaits = 0;
}

c10::IValue Server::call(
    torch::nn::Module& module,
    const nn::CallKey& key,
    const c10::IValue& args,
    int first,
    int last) {
  Task& task = current_task("a module of another partition");
  const ModuleDirectory& modules = *context_.modules;
  Fields fields;
  fields.serial = work_->serial;
  fields.microbatch = task.request.microbatch;
  fields.module = modules.id_of(module);
  fields.first = first;
  fields.last = last;
  fields.invoker = key.hash;
  fields.training = module.is_training() ? 1 : 0;
  fields.call = mix(task.id, 16 + task.calls++);
  fields.after_backward = task.request.phase == Phase::kBackward ? 1 : task.request.after_backward;
  capture_modes(fields);
  const int owner = first >= 0 ? modules.owner_of_child(module, first)
                               : modules.entries().at(fields.module).owner;
  // Marked with grad mode off as well: a module may hand an input through, and
  // that keeps its history.
  const std::string marks = gradient_marks(args);
  exchange_->request(task, fields, owner, {args, marks});
  const Content result = exchange_->response(task, fields, owner);
  if (result.needs_grad.find('1') != std::string::npos) {
    torch::autograd::edge_list edges;
    std::size_t at = 0;
    for_each_tensor(args, [&](const at::Tensor& tensor) {
      edges.push_back(
          marks[at++] == '1' ? torch::autograd::impl::gradient_edge(tensor)
                             : torch::autograd::Edge());
    });
    hang(
        result.value,
        result.needs_grad,
        std::make_shared<RemoteBackward>(
            std::move(edges), *this, fields.call, owner, fields.module, fields.microbatch));
  }
  return exchange_->hand_over(response_leg(fields), result.value);
}

std::vector<torch::Tensor> Server::call_backward(
    std::uint64_t call,
    int owner,
    int module,
    int microbatch,
    const std::vector<torch::Tensor>& gradients,
    bool inputs_only) {
  Task& task = current_task("a backward through a module of another partition");
  Fields fields;
  fields.serial = work_->serial;
  fields.phase = Phase::kBackward;
  fields.microbatch = microbatch;
  fields.module = module;
  fields.call = call;
  fields.inputs_only = inputs_only ? 1 : 0;
  exchange_->request(task, fields, owner, {pack(gradients), {}});
  if (auto* pass = WeightGradientPass::current()) {
    pass->requested();
  }
  const Content result = exchange_->response(task, fields, owner);
  return unpack<std::vector<torch::Tensor>>(
      exchange_->hand_over(response_leg(fields), result.value));
}

void Server::run_forward(Task& task) {
  const Fields& request = task.request;
  const Content given = exchange_->arguments(task);

  torch::nn::Module& module = *context_.modules->entries().at(request.module).module;
  if (static_ == nullptr) { // there no mode travels: the kind of step goes by the root's
    check_training_mode(module, request);
  }
  CallRecord record;
  record.module = request.module;
  if (given.needs_grad.find('1') != std::string::npos) {
    record.inputs = std::make_shared<InputCapture>();
    hang(given.value, given.needs_grad, record.inputs);
  }
  std::vector<std::pair<torch::Tensor, std::uint32_t>> versions;
  for_each_tensor(given.value, [&](const at::Tensor& tensor) {
    versions.emplace_back(tensor, tensor._version());
  });
  c10::IValue result;
  {
    const ModeScope modes(request);
    result = nn::find_invoker(request.invoker)(
        module,
        exchange_->hand_over(request_leg(request), given.value),
        request.first,
        request.last);
  }
  for (const auto& [tensor, version] : versions) {
    if (tensor._version() != version) {
      throw UserError(
          "the module changed one of its inputs in place; its caller is on "
          "another rank and cannot see that: use the out-of-place form");
    }
  }
  const std::string marks = gradient_marks(result);
  record.outputs = marked_tensors(result, marks);
  turn_ends(task);
  expect_backward(record, request.microbatch);
  exchange_->respond(task, {result, marks});
  if (!record.outputs.empty()) {
    records_.emplace(request.call, std::move(record));
  }
}

void Server::run_backward(Task& task) {
  const auto found = records_.find(task.request.call);
  if (found == records_.end()) {
    throw UserError(
        "backward reached a module call a second time in one step; combine the "
        "losses and call model.backward once");
  }
  CallRecord record = std::move(found->second);
  records_.erase(found);
  const auto gradients = unpack<std::vector<torch::Tensor>>(
      exchange_->hand_over(request_leg(task.request), exchange_->arguments(task).value));
  torch::autograd::variable_list roots;
  torch::autograd::variable_list root_gradients;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    if (gradients.at(i).defined()) {
      roots.push_back(record.outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  if (task.request.inputs_only != 0) {
    exchange_->respond(task, {pack(input_gradients(record, roots, root_gradients)), {}});
    task.responded = true;
    if (gradient_order_ != nullptr) {
      gradient_order_->ended(*record.graph); // it adds to no parameter
    }
    return;
  }
  const bool awaited = record.inputs != nullptr;
  OrderedBackward in_place(
      gradient_order_.get(), task.request.microbatch, record, roots, {awaited, RemoteBackward::is});
  torch::autograd::backward(roots, root_gradients);
  std::vector<torch::Tensor> result;
  if (awaited) {
    result = std::move(record.inputs->captured);
    result.resize(record.inputs->num_inputs());
  }
  exchange_->respond(task, {pack(result), {}});
  task.responded = true;
  in_place.catch_up();
}

void Server::backward(
    const std::vector<torch::Tensor>& tensors,
    const std::vector<torch::Tensor>& gradients) {
  Task& task = current_task("model.backward");
  if (task.kind != Task::Kind::kRoot) {
    throw UserError(
        "model.backward was called inside a module; call it in the step "
        "function");
  }
  auto& state = progress_.states.at(task.request.microbatch);
  if (state == schedule::Progress::State::kForward) {
    if (static_ != nullptr) {
      static_->before_schedule(task);
    }
    state = schedule::Progress::State::kReady;
    task.awaits = 0;
    forward_ended(task.request.microbatch);
    pause();
  }
  std::vector<torch::Tensor> real;
  for (const torch::Tensor& tensor : tensors) {
    real.push_back(exchange_->read(tensor).toTensor());
  }
  CallRecord whole; // the step function's own graph
  whole.outputs = real;
  expect_backward(whole, task.request.microbatch);
  OrderedBackward in_place(
      gradient_order_.get(), task.request.microbatch, whole, real, {false, RemoteBackward::is});
  torch::autograd::backward(real, gradients);
  in_place.catch_up();
}

} // namespace tessera::runtime
