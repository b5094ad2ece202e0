#include "tessera/model/model_set.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/module/remote_tensor.h"

namespace tessera::model {

void ModelSet::check_may_zero(const char* what) {
  if (!running_.inside) {
    return;
  }
  if (context().config.pipeline_parallel_degree > 1) {
    throw UserError(
        str(what,
            " was called in a step function, which runs on pp rank 0 alone, so the gradients of "
            "other ranks would stay; call it before the step"));
  }
  if (running_.microbatch == 0 || running_.tracing || warned_of_zeros_ ||
      context().world->rank() != 0) {
    return;
  }
  warned_of_zeros_ = true;
  log::warning(
      str(what,
          " is called in microbatch ",
          running_.microbatch,
          " of a step, and drops the gradients of the microbatches before it; call it before the "
          "step"));
}

void ModelSet::check_behind_step(const char* what) const {
  if (running_.inside) {
    throw UserError(
        str(what,
            " was called in a step function, which runs once for each microbatch, before the "
            "gradients of the step are added up and averaged; call it behind the step"));
  }
}

void ModelSet::check_may_wait(const char* what, const std::vector<int>& ranks) const {
  if (!running_.inside) {
    return;
  }
  const Context& context = this->context();
  const int self = context.world->rank();
  const int pp = context.coordinates().pp;
  for (const int rank : ranks) {
    const int theirs = context.layout->coordinates(rank).pp;
    if (theirs != pp) {
      throw UserError(
          str(what,
              " was called in a step function, which runs on pp rank 0 alone, and waits for the "
              "script of rank ",
              rank,
              ", which is on pp rank ",
              theirs,
              "; call it behind the step, or over the DP_GROUP"));
    }
    if (running_.tracing && rank != self) {
      throw UserError(
          str(what,
              " was called in a step function while this rank alone traces it, and waits for the "
              "script of rank ",
              rank,
              "; call it behind the step, or write if (!tessera::is_tracing()) before it"));
    }
  }
}

void ModelSet::add(ModelCore& model) {
  check_own(model);
  model.enter(++models_made_, free_label(model.name()));
  models_.push_back(&model);
  ++revision_;
}

std::shared_ptr<const double> ModelSet::loss_scale() const {
  for (auto scale = loss_scales_.rbegin(); scale != loss_scales_.rend(); ++scale) {
    if (auto live = scale->lock()) {
      return live;
    }
  }
  return nullptr;
}

std::string ModelSet::free_label(const std::string& name) const {
  const auto taken = [&](const std::string& label) {
    return std::any_of(models_.begin(), models_.end(), [&](const ModelCore* other) {
      return other->label() == label;
    });
  };
  std::string label = name;
  for (int i = 2; taken(label); ++i) {
    label = str(name, " ", i);
  }
  return label;
}

void ModelSet::check_own(const ModelCore& model) const {
  std::set<const void*> known;
  const auto refuse = [&](const std::string& what, const std::string& why) {
    throw ConfigError(str("model '", model.name(), "': ", what, why));
  };
  for (const auto& handle : divided_) {
    if (const auto tensor = handle.lock()) {
      known.insert(tensor.get());
    }
  }
  for (const auto& [name, tensor] : model.all_tensors()) {
    if (known.contains(tensor.unsafeGetTensorImpl())) {
      refuse(
          str("'", name, "'"),
          " was divided over pipeline ranks by a DistributedModel that is gone, so some ranks hold "
          "nothing of it; make the modules anew and load its state_dict");
    }
  }
  for (const ModelCore* other : models_) {
    known.clear();
    for (const auto& [name, tensor] : other->all_tensors()) {
      known.insert(tensor.unsafeGetTensorImpl());
    }
    for (const auto& module : other->root()->modules()) {
      known.insert(module.get());
    }
    const std::string why =
        str(" is part of the model '",
            other->label(),
            "' too; put what they share into one model, whose modules a step function may call "
            "one by one");
    for (const auto& [name, tensor] : model.all_tensors()) {
      if (known.contains(tensor.unsafeGetTensorImpl())) {
        refuse(str("'", name, "'"), why);
      }
    }
    for (const auto& item : model.root()->named_modules("the model")) {
      if (known.contains(item.value().get())) {
        refuse(str("module '", item.key(), "'"), why);
      }
    }
  }
}

void ModelSet::remove(ModelCore& model) {
  std::erase(models_, &model);
  std::erase_if(directories_, [&](const auto& claim) { return claim.second == &model; });
  ++revision_;
  std::erase_if(divided_, [](const auto& handle) { return handle.expired(); });
  if (!model.partitioned() || context().config.pipeline_parallel_degree == 1) {
    return;
  }
  for (const auto& [name, tensor] : model.all_tensors()) {
    divided_.emplace_back(tensor.getIntrusivePtr());
  }
}

std::vector<optim::DistributedOptimizer*> ModelSet::optimizers() const {
  std::vector<optim::DistributedOptimizer*> live;
  for (const auto& known : optimizers_) {
    if (const auto place = known.lock()) {
      live.push_back(*place);
    }
  }
  return live;
}

void ModelSet::release(ModelCore& model) {
  std::erase(models_, &model);
  std::erase_if(directories_, [&](const auto& claim) { return claim.second == &model; });
  released_.insert(model.number());
  ++revision_;
}

void ModelSet::claim_directory(const ModelCore& model, const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "").lexically_normal().string();
  const ModelCore* owner = directories_.emplace(path, &model).first->second;
  if (owner != &model) {
    throw CheckpointError(
        str("'",
            directory,
            "' holds checkpoints of the model '",
            owner->label(),
            "'; give the model '",
            model.label(),
            "' a folder of its own"));
  }
}

void refuse_replaced(const at::Tensor& parameter) {
  const nn::RemoteTensor* handle = nn::remote_tensor(parameter);
  if (handle != nullptr && !handle->replaced_by.empty()) {
    throw ConfigError(tessera::str(
        "the optimizer was given the parameter '",
        handle->name,
        "' of a module in whose place tensor parallelism has put a ",
        handle->replaced_by,
        "; make the DistributedModel first, and give the optimizer parameters of "
        "model.parameters() or model.named_parameters()"));
  }
}

std::string why_no_parameter(const at::Tensor& tensor) {
  return tessera::str(
      "the optimizer was given a tensor of sizes ",
      tensor.sizes(),
      " that is no parameter of a live DistributedModel: its gradient is averaged over no "
      "replicas, "
      "which may drift apart, and no checkpoint holds it; register it in the model, or in a module "
      "of its own that is made a DistributedModel");
}

} // namespace tessera::model
