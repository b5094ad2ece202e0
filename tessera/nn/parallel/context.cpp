#include "tessera/nn/parallel/context.h"

#include <utility>

#include "tessera/comm/collective.h"
#include "tessera/comm/process_group.h"

namespace tessera::nn {

namespace {
TensorParallel& of_process() {
  static TensorParallel context;
  return context;
}
thread_local const TensorParallel* of_thread = nullptr;
thread_local const comm::Caller* module_of_thread = nullptr;
} // namespace

int TensorParallel::size() const {
  return group == nullptr ? 1 : group->size();
}

int TensorParallel::rank() const {
  return group == nullptr ? 0 : group->rank();
}

const TensorParallel& tensor_parallel() {
  return of_thread != nullptr ? *of_thread : of_process();
}

const comm::Caller& present_module() {
  static const comm::Caller none;
  return module_of_thread != nullptr ? *module_of_thread : none;
}

const comm::Caller* set_present_module(const comm::Caller* caller) {
  return std::exchange(module_of_thread, caller);
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
