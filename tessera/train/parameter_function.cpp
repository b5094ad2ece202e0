#include "tessera/train/parameter_function.h"

#include "tessera/base/error.h"
#include "tessera/model/model_core.h"
#include "tessera/train/engine.h"
#include "tessera/train/model_access.h"
#include "tessera/train/session.h"

namespace tessera {

/// Gives the number back when the last copy of the function ends.
struct ParameterFunction::Registered {
  Registered(const std::shared_ptr<model::ModelCore>& model, Term term, const std::string& type)
      : core(model), number(model->parameter_functions().add(std::move(term), type)) {}
  ~Registered() {
    if (const auto model = core.lock()) {
      model->parameter_functions().remove(number);
    }
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  std::weak_ptr<model::ModelCore> core;
  int number;
};

ParameterFunction::ParameterFunction(const Model& model, Term term, const std::string& type)
    : registered_(std::make_shared<const Registered>(
          train::ModelAccess::core(model),
          std::move(term),
          type)) {}

at::Tensor ParameterFunction::operator()() const {
  const auto core = registered_->core.lock();
  if (core == nullptr) {
    throw UserError("a function of tessera::over_parameters was called after its model had ended");
  }
  train::StepEngine& engine = train::engine();
  if (engine.tracing()) {
    return core->parameter_functions().traced_sum(registered_->number, *core->root());
  }
  engine.check_call(*core);
  core->plan(); // throws before the partition
  return core->parameter_functions().sum(registered_->number);
}

} // namespace tessera
