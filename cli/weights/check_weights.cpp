#include "cli/weights/check_weights.h"

#include <filesystem>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"

#include "models/load.h"
#include "models/registry.h"

namespace tessera::cli {

void check_weights(const Weights& weights, const models::Preset& preset) {
  models::AnyModel model;
  {
    const delay_param_initialization shapes_only;
    model = models::make_model(preset);
  }
  if (!weights.checkpoint()) {
    models::parameters_from(*model.module, weights.tensors(), weights.path());
    return;
  }
  check_pieces(*weights.checkpoint());
  std::vector<checkpoint::Wanted> wanted;
  std::set<const void*> seen;
  checkpoint::ReadOptions options;
  options.convert_dtypes = true;
  for (const auto& item : model.module->named_parameters()) {
    const at::Tensor& parameter = item.value();
    options.all_names.push_back(item.key());
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      wanted.push_back({item.key(), parameter.scalar_type(), parameter.sizes().vec(), {}});
    }
  }
  for (const auto& item : model.module->named_buffers()) {
    options.all_names.push_back(item.key());
  }
  weights.checkpoint()->check_model(wanted, options);
}

std::string check_resumable(const std::string& from, const models::Preset& preset) {
  const Weights weights(from);
  if (!weights.checkpoint()) {
    throw ConfigError(
        str("\"", from, "\" holds weights alone; write a folder of checkpoints of tessera train"));
  }
  if (std::filesystem::equivalent(weights.path(), from)) {
    throw ConfigError(
        str("\"",
            from,
            "\" is one checkpoint; write the folder of the job's checkpoints, of which "
            "the newest whole one counts"));
  }
  const checkpoint::Meta& meta = weights.checkpoint()->meta();
  if (meta.optimizer.kind.empty()) {
    throw ConfigError(
        str(weights.path(),
            " has no optimizer's state, so a run cannot go on from it; write its path as "
            "model.init_from to begin with its weights"));
  }
  check_weights(weights, preset);
  return str(
      weights.path(),
      ", written by pp ",
      meta.degrees.pipeline,
      ", dp ",
      meta.degrees.reduced_data,
      ", tp ",
      meta.degrees.tensor,
      ", loads under the new plan: its tensors are the model's, and any layout loads them");
}

} // namespace tessera::cli
