#include "cli/weights/start_from.h"

#include <filesystem>

#include "models/load.h"

namespace tessera::cli {

void start_from(const Weights& weights, const models::AnyModel& whole, const Model& model) {
  if (!weights.checkpoint()) {
    model.load_state_dict(
        models::parameters_from(*whole.module, weights.tensors(), weights.path()));
    return;
  }
  const std::filesystem::path path(weights.path());
  LoadOptions options;
  options.tag = path.filename().string();
  options.optimizer = false;
  load(model, path.parent_path().string(), options);
}

} // namespace tessera::cli
