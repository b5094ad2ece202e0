#include "tessera/train/make_runner.h"

#include "tessera/train/local_runner.h"
#include "tessera/train/server_runner.h"

namespace tessera::train {

std::unique_ptr<StepRunner> make_runner(Context& context) {
  if (context.config.pipeline_parallel_degree == 1) {
    return std::make_unique<LocalRunner>(context);
  }
  return std::make_unique<ServerRunner>(context);
}

} // namespace tessera::train
