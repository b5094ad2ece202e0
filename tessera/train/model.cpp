#include "tessera/train/model.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/model/copy.h"
#include "tessera/model/decision.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/module/state_translation.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/optim/optimizer_access.h"
#include "tessera/tensor/map_tensors.h"
#include "tessera/train/engine.h"
#include "tessera/train/forward_only.h"
#include "tessera/train/partial_state.h"
#include "tessera/train/session.h"

namespace tessera {

ModelCreationScope::ModelCreationScope(
    bool tensor_parallelism,
    std::optional<at::ScalarType> dtype,
    const nn::OptionValues& options)
    : previous_dtype_(c10::get_default_dtype()) {
  if (tensor_parallelism) {
    marked_.emplace(true, options);
  }
  if (dtype) {
    c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(*dtype));
  }
}

ModelCreationScope::~ModelCreationScope() {
  c10::set_default_dtype(previous_dtype_);
}

void set_partition(const torch::nn::Module& module, int index) {
  const Config& config = config_in_force();
  const std::string called =
      str("set_partition of a ", nn::type_name(module), " to pp rank ", index, ": ");
  if (config.auto_partition) {
    throw ConfigError(
        called + "auto_partition is true, so the library chooses; write \"auto_partition\": false");
  }
  if (index < 0 || index >= config.pipeline_parallel_degree) {
    throw ConfigError(
        str(called,
            "pipeline_parallel_degree is ",
            config.pipeline_parallel_degree,
            "; write 0 to ",
            config.pipeline_parallel_degree - 1));
  }
  for (const model::ModelCore* model : train::engine().model_set()->models()) {
    if (model->partitioned() && model->table().id_of(module) >= 0) {
      throw UserError(
          str(called,
              "the model '",
              model->label(),
              "' is partitioned already; call it before the first step"));
    }
  }
  const bool operations = config.partition_mode == config::PartitionMode::kOperations;
  if (operations && config.pipeline_parallel_degree == 1) {
    return;
  }
  if (operations) { // no module is called, so any will do
    for (const auto& inside : module.modules()) {
      nn::mark_interceptable(inside);
    }
  }
  nn::set_manual_partition(module, index);
  for (const auto& inside : module.modules(/*include_self=*/false)) {
    if (operations || nn::has_holder(*inside)) {
      nn::set_manual_partition(*inside, index);
    }
  }
}

namespace detail {

void refuse_operations() {
  throw ConfigError(
      "partition_mode \"operations\": the model is called with arguments, or returns something, of "
      "a type that refers to others' data or is not known to tessera::Value; give it tensors, "
      "numbers, texts and containers of these, or write \"partition_mode\": \"modules\"");
}

void check_unchanged(const c10::IValue& given, const c10::IValue& left) {
  std::vector<at::Tensor> before;
  for_each_tensor(given, [&](const at::Tensor& tensor) { before.push_back(tensor); });
  std::size_t i = 0;
  bool same = true;
  for_each_tensor(left, [&](const at::Tensor& tensor) {
    same = same && i < before.size() && tensor.is_same(before[i]);
    ++i;
  });
  if (!same || i != before.size()) {
    throw UserError(
        "partition_mode \"operations\": the model's forward gives one of its arguments another "
        "value; return that value, or write \"partition_mode\": \"modules\"");
  }
}

} // namespace detail

bool Model::by_operations() const {
  return core_->operations() != nullptr;
}

c10::IValue Model::call_by_operations(const c10::IValue& arguments, const PackedForward& forward)
    const {
  return core_->operations()->call(arguments, forward);
}

namespace {

nn::TranslateState translation_of(const std::shared_ptr<torch::nn::Module>& module) {
  return module == nullptr ? nullptr : nn::state_translation_of(*module);
}

} // namespace

// The translation is asked for first: it must see the modules that the script made.
Model::Model(std::shared_ptr<torch::nn::Module> module, ModelOptions options)
    : translate_(translation_of(module)),
      core_(train::engine().make_model(std::move(module), std::move(options))) {}

void Model::check_call() const {
  train::engine().check_call(*core_);
}

void Model::backward(const at::Tensor& loss, const at::Tensor& gradient) const {
  backward(std::vector<at::Tensor>{loss}, std::vector<at::Tensor>{gradient});
}

void Model::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) const {
  if (train::ForwardOnly::running()) {
    throw UserError(
        str("backward of the model '",
            core_->label(),
            "' in a step that runs forwards only (StepOptions::forward_only), of which nothing is "
            "kept; leave the option out"));
  }
  train::engine().backward(*core_, tensors, gradients, core_->gradient_scale());
}

std::vector<at::Tensor> Model::parameters() const {
  return core_->all_parameters();
}

torch::OrderedDict<std::string, at::Tensor> Model::named_parameters() const {
  return core_->root()->named_parameters();
}

std::vector<at::Tensor> Model::buffers() const {
  return core_->root()->buffers();
}

torch::OrderedDict<std::string, at::Tensor> Model::named_buffers() const {
  return core_->root()->named_buffers();
}

bool Model::is_training() const {
  return core_->root()->is_training();
}

void Model::zero_grad() const {
  train::engine().model_set()->check_may_zero("model.zero_grad()");
  if (core_->gradients() != nullptr) {
    core_->gradients()->forget_averages(nullptr, /*set_to_none=*/false);
  }
  core_->root()->zero_grad();
}

void Model::to(at::Device device) const {
  for (const auto& list : {parameters(), buffers()}) {
    for (const at::Tensor& tensor : list) {
      // Delayed tensors get their memory where they will live.
      if (tensor.defined() && !tensor.is_meta() && tensor.device() != device) {
        throw UserError(
            str("model.to(",
                device.str(),
                ") of the model '",
                core_->label(),
                "', which is on ",
                tensor.device().str(),
                "; call it on the module before it is given to DistributedModel"));
      }
    }
  }
}

void Model::train(bool on) const {
  for (const nn::ReplacedModule& replaced : core_->replacements().replaced) {
    if (replaced.path.empty()) {
      replaced.original->train(on); // which forgets what its parts were told
    }
  }
  core_->root()->train(on);
}

void Model::eval() const {
  train(false);
}

std::optional<at::ScalarType> Model::converted_to() const {
  return core_->converted_to();
}

bool Model::partitioned() const {
  return core_->partitioned();
}

NamedTensors Model::local_parameters() const {
  return core_->local_parameters();
}

NamedTensors Model::local_buffers() const {
  return core_->local_buffers();
}

TensorMap Model::local_state_dict() const {
  TensorMap state = core_->local_state_dict();
  state.emplace(kPartialMarker, at::scalar_tensor(true, at::kBool));
  return state;
}

TensorMap Model::state_dict(bool gather_to_rank0) const {
  return core_->state_dict(gather_to_rank0);
}

void Model::load_state_dict(TensorMap state, bool strict, bool same_partition_load) const {
  const train::StateKind kind = train::take_kind(state, kPartialMarker);
  train::agree_on_kind(kind);
  train::agree_on_error([&] {
    if (kind == train::StateKind::kPart && !same_partition_load) {
      state = train::joined_over_pipeline(state);
    } else if (kind == train::StateKind::kWhole && translate_) {
      state = translate_(state, strict);
    }
  });
  core_->load_state_dict(std::move(state), strict, kind == train::StateKind::kPart);
}

void Model::copy_to_model(const Model& other, double decay) const {
  model::check_decay(decay);
  core_->agree_on_values();
  other.core_->agree_on_values();
  bool copied = false;
  core_->with_values([&] {
    copied = other.core_->with_values([&] { model::copy_into(*core_, *other.core_, decay); });
  });
  if (copied) {
    return;
  }
  core_->on_partition([from = std::weak_ptr(core_), to = other.core_, decay] {
    to->on_partition(
        [from = from.lock(), to = to.get(), decay] { model::copy_into(*from, *to, decay); });
  });
}

void Model::copy_to_module(std::shared_ptr<torch::nn::Module> other, double decay) const {
  model::check_decay(decay);
  core_->agree_on_values();
  if (!core_->with_values([&] { model::copy_into(*core_, *other, decay); })) {
    core_->on_partition([from = core_.get(), to = std::move(other), decay] {
      model::copy_into(*from, *to, decay);
    });
  }
}

void Model::cpu() const {
  train::engine().release(*core_);
}

HookHandle Model::register_post_partition_hook(Hook hook) const {
  return HookHandle(core_->on_partition(std::move(hook)));
}

HookHandle Model::register_post_step_hook(Hook hook) const {
  return HookHandle(core_->on_first_step(std::move(hook)));
}

// The core keeps the hook, so the hook does not keep the core.
Model::Hook Model::with_arguments(ModelHook hook) const {
  return [core = std::weak_ptr(core_), translate = translate_, hook = std::move(hook)] {
    const Model model(core.lock(), translate);
    optim::DistributedOptimizer* last = nullptr;
    for (optim::DistributedOptimizer* optimizer : train::engine().model_set()->optimizers()) {
      if (optim::OptimizerAccess::has_parameters_of(*optimizer, *model.core_)) {
        last = optimizer;
      }
    }
    hook(model, last);
  };
}

HookHandle Model::register_post_partition_hook(ModelHook hook) const {
  return register_post_partition_hook(with_arguments(std::move(hook)));
}

HookHandle Model::register_post_step_hook(ModelHook hook) const {
  return register_post_step_hook(with_arguments(std::move(hook)));
}

void Model::register_comm_hook(CommHook hook) const {
  core_->set_comm_hook(std::move(hook));
}

Model::NamedModules Model::local_named_modules() const {
  return core_->local_modules();
}

std::vector<std::shared_ptr<torch::nn::Module>> Model::local_modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& [name, module] : core_->local_modules()) {
    modules.push_back(module);
  }
  return modules;
}

Model::NamedModules Model::distributed_modules() const {
  NamedModules modules = core_->local_modules();
  std::erase_if(modules, [](const auto& item) {
    return dynamic_cast<const nn::DistributedModule*>(item.second.get()) == nullptr;
  });
  return modules;
}

bool Model::is_distributed_parameter(const at::Tensor& parameter) const {
  const auto name = core_->name_of_parameter(parameter);
  return name && core_->state_layout().is_distributed(*name);
}

bool Model::is_distributed_buffer(const at::Tensor& buffer) const {
  const auto name = core_->name_of_buffer(buffer);
  return name && core_->state_layout().in_distributed_module(*name);
}

bool Model::is_scaled_batch_parameter(const at::Tensor& parameter) const {
  const auto name = core_->name_of_parameter(parameter);
  return name && core_->state_layout().is_scaled_batch(*name);
}

bool Model::is_scaled_batch_buffer(const at::Tensor& buffer) const {
  return is_distributed_buffer(buffer);
}

NamedTensors Model::default_reducer_named_parameters() const {
  return core_->reduced_parameters(/*scaled_batch=*/false);
}

NamedTensors Model::scaled_batch_reducer_named_parameters() const {
  return core_->reduced_parameters(/*scaled_batch=*/true);
}

const std::shared_ptr<torch::nn::Module>& Model::get_module() const {
  return core_->root();
}

std::shared_ptr<const model::Decision> Model::decision() const {
  return core_->decision();
}

} // namespace tessera
