#pragma once

#include <memory>

#include "tessera/train/step_runner.h"

namespace tessera::train {

/// For a configuration with one pipeline rank a LocalRunner, else a ServerRunner. `context` must
/// outlive the result.
std::unique_ptr<StepRunner> make_runner(Context& context);

} // namespace tessera::train
