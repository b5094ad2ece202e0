#include "tessera/tracer/kept_memory.h"

#include <map>
#include <mutex>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/map_tensors.h"

namespace tessera::tracer {

namespace {

// The totals are of another type in later versions of libtorch.
template <typename>
struct TotalOf;
template <typename Class, typename T>
struct TotalOf<void (Class::*)(void*, std::int64_t, T, T, c10::Device)> {
  using type = T;
};
using Total = TotalOf<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::type;

} // namespace

/// What libtorch's allocators call, on whichever thread allocates.
class KeptMemory::Report : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* address,
      std::int64_t bytes,
      Total /*allocated*/,
      Total /*reserved*/,
      c10::Device /*device*/) override {
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      if (counting_ && !calls_.empty()) {
        calls_.back()[address] = bytes;
      }
      return;
    }
    for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
      if (call->erase(address) > 0) {
        return;
      }
    }
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }

  void begin_call() {
    const std::lock_guard lock(mutex_);
    calls_.emplace_back();
  }
  std::int64_t end_call() {
    const std::lock_guard lock(mutex_);
    TESSERA_CHECK(!calls_.empty(), "no call has begun");
    std::int64_t bytes = 0;
    for (const auto& [address, size] : calls_.back()) {
      bytes += size;
    }
    calls_.pop_back();
    return bytes;
  }
  void count(bool counting) {
    const std::lock_guard lock(mutex_);
    counting_ = counting;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unordered_map<const void*, std::int64_t>> calls_; // bytes by address
  bool counting_ = true;
};

KeptMemory::KeptMemory()
    : report_(std::make_shared<Report>()), guard_(c10::DebugInfoKind::PROFILER_STATE, report_) {}

KeptMemory::~KeptMemory() = default;

void KeptMemory::begin_call() {
  report_->begin_call();
}

std::int64_t KeptMemory::end_call() {
  return report_->end_call();
}

void KeptMemory::abandon_call() {
  report_->end_call();
}

c10::IValue KeptMemory::without_history(const c10::IValue& results) {
  report_->count(false);
  std::map<const c10::TensorImpl*, at::Tensor> copies; // one result may be there twice
  const c10::IValue values = map_tensors(results, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.grad_fn() == nullptr) {
      return tensor;
    }
    at::Tensor& copy = copies[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      copy = tensor.detach().requires_grad_().clone();
    }
    return copy;
  });
  report_->count(true);
  return values;
}

} // namespace tessera::tracer
