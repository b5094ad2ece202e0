#include "tessera/nn/parallel/context.h"

namespace tessera::nn {

namespace {
TensorParallel& of_process() {
  static TensorParallel context;
  return context;
}
thread_local const TensorParallel* of_thread = nullptr;
} // namespace

const TensorParallel& tensor_parallel() {
  return of_thread != nullptr ? *of_thread : of_process();
}

void set_tensor_parallel(const TensorParallel& context) {
  of_process() = context;
}

TensorParallelScope::TensorParallelScope(const TensorParallel& context)
    : context_(context), previous_(of_thread) {
  of_thread = &context_;
}

TensorParallelScope::~TensorParallelScope() {
  of_thread = previous_;
}

} // namespace tessera::nn
