#include "tessera/train/step_failure.h"

#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::train {

void abandon_collectives(const std::string& why) {
  const nn::TensorParallel& parallel = nn::tensor_parallel();
  if (parallel.size() == 1) {
    return;
  }
  parallel.group->abandon(why);
  if (parallel.mesh != nullptr) {
    parallel.mesh->abandon(why);
  }
}

void recover_collectives() {
  const nn::TensorParallel& parallel = nn::tensor_parallel();
  if (parallel.size() == 1) {
    return;
  }
  parallel.group->recover();
  if (parallel.mesh != nullptr) {
    parallel.mesh->recover();
  }
}

} // namespace tessera::train
