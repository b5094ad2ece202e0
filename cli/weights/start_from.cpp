#include "cli/weights/start_from.h"

#include <filesystem>
#include <utility>

#include "models/load.h"

namespace tessera::cli {

StartingPoint::StartingPoint(Weights weights, const models::AnyModel& whole)
    : weights_(std::move(weights)) {
  if (!weights_.checkpoint()) {
    state_ = models::parameters_from(*whole.module, weights_.tensors(), weights_.path());
  }
}

void StartingPoint::load_into(const Model& model) {
  if (!weights_.checkpoint()) {
    model.load_state_dict(std::exchange(state_, {}));
    return;
  }
  const std::filesystem::path path(weights_.path());
  LoadOptions options;
  // The folder is hidden when a save over it was interrupted; then the tag says which it is.
  const std::string name = path.filename().string();
  options.tag = name.starts_with('.') ? weights_.checkpoint()->meta().tag : name;
  options.optimizer = false;
  options.progress = false;
  load(model, path.parent_path().string(), options);
}

} // namespace tessera::cli
