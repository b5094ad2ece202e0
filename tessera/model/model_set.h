#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/context/context.h"

namespace tessera::optim {
class DistributedOptimizer;
}
namespace tessera::model {

class ModelCore;

/// What the step function of this process does, from the engine that runs it.
struct RunningStep {
  bool inside = false;
  bool tracing = false; // and inside
  int microbatch = 0; // the last that began
};

/// Throws: ConfigError when the tensor is of a module that tensor parallelism has replaced.
void refuse_replaced(const at::Tensor& parameter);
/// Returns what an optimizer of a job of several ranks does not do with a tensor that is no
/// parameter of a live model, and what to write. Threads: any.
std::string why_no_parameter(const at::Tensor& tensor);

/// The live models of the process.
///
/// All ranks run the same script, so they make and destroy the same models in the same order; what
/// ranks agree on goes by that order. Not collective. Threads: step thread only.
class ModelSet {
 public:
  explicit ModelSet(Context& context) : context_(context.weak_from_this()) {}

  /// Throws: ConfigError after `shutdown`, which an optimizer may outlive.
  Context& context() const {
    return in_force(context_);
  }

  /// Names the model and appends it.
  /// Throws: ConfigError when it has a parameter, buffer or module of another live model, or a
  /// tensor that a destroyed one had divided over pipeline ranks.
  void add(ModelCore& model);
  void remove(ModelCore& model);
  /// The model is an ordinary module from now on (ModelCore::release).
  void release(ModelCore& model);
  /// Returns whether the model of this number was released. Not collective.
  bool was_released(int number) const {
    return released_.contains(number);
  }
  /// Tells that a model was partitioned.
  void partitioned() {
    ++revision_;
  }

  RunningStep& running() {
    return running_;
  }
  /// Before gradients are set to zero by `what`, such as "optimizer.zero_grad()". Throws: UserError
  /// inside a step of a pipeline.
  void check_may_zero(const char* what);
  /// Throws: UserError inside a step: `what` acts on the whole step's gradients.
  void check_behind_step(const char* what) const;
  /// Before `what`, such as "barrier", waits for scripts of other ranks of a group. Throws:
  /// UserError inside a step of a pipeline where some of them have another pp_rank, and while one
  /// rank alone traces the step.
  void check_may_wait(const char* what, const std::vector<int>& ranks) const;

  /// In order of construction.
  const std::vector<ModelCore*>& models() const {
    return models_;
  }
  bool single() const {
    return models_.size() == 1;
  }
  /// Changes whenever a model is made, partitioned or destroyed.
  std::int64_t revision() const {
    return revision_;
  }

  /// From an optimizer: where it is, as long as it lives.
  void know(const std::shared_ptr<optim::DistributedOptimizer*>& place) {
    optimizers_.push_back(place);
  }
  /// Returns those that live, in order of construction.
  std::vector<optim::DistributedOptimizer*> optimizers() const;

  /// From an optimizer with fp16: what losses are multiplied by, as long as it lives.
  void use_loss_scale(const std::shared_ptr<const double>& scale) {
    loss_scales_.push_back(scale);
  }
  /// What was given last and lives; nullptr where nothing does.
  std::shared_ptr<const double> loss_scale() const;

  /// From `save`: a folder takes the checkpoints of one model, since a tag written twice would be
  /// replaced and the newest one be anybody's.
  /// Throws: CheckpointError when another live model saved there.
  void claim_directory(const ModelCore& model, const std::string& directory);

 private:
  void check_own(const ModelCore& model) const;
  std::string free_label(const std::string& name) const;

  std::weak_ptr<Context> context_;
  RunningStep running_;
  bool warned_of_zeros_ = false;
  std::vector<ModelCore*> models_;
  std::int64_t revision_ = 0;
  int models_made_ = 0;
  std::set<int> released_; // numbers of models
  // Tensors of destroyed models, each whole on one pipeline rank and empty on the others.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> divided_;
  std::map<std::string, const ModelCore*> directories_; // of checkpoints
  std::vector<std::weak_ptr<const double>> loss_scales_;
  std::vector<std::weak_ptr<optim::DistributedOptimizer*>> optimizers_;
};

} // namespace tessera::model
