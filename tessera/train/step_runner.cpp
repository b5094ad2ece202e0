#include "tessera/train/step_runner.h"

#include "tessera/runtime/protocol.h"

namespace tessera::train {

std::uint64_t random_seed(const Context& context) {
  return runtime::mix(static_cast<std::uint64_t>(context.config.seed), context.data_rank());
}

bool continues_script_stream(const Context& context, int microbatches) {
  return context.random_layout == nullptr && microbatches == 1 &&
         context.group(Group::kDP).size() == 1;
}

} // namespace tessera::train
