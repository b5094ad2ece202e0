#include "tessera/tensor/mapped_bytes.h"

#include <atomic>

namespace tessera {

namespace {

std::atomic<std::int64_t> g_bytes{0};
std::atomic<MappedBytes::Observer> g_observer{nullptr};

void change(std::int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  g_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (const MappedBytes::Observer observer = g_observer.load()) {
    observer(bytes);
  }
}

} // namespace

MappedBytes::MappedBytes(std::int64_t bytes) : bytes_(bytes) {
  change(bytes_);
}

MappedBytes::~MappedBytes() {
  change(-bytes_);
}

void MappedBytes::resize(std::int64_t bytes) {
  change(bytes - bytes_);
  bytes_ = bytes;
}

std::int64_t MappedBytes::of_process() {
  return g_bytes.load(std::memory_order_relaxed);
}

void MappedBytes::observe(Observer observer) {
  g_observer.store(observer);
  if (observer != nullptr) {
    observer(of_process());
  }
}

} // namespace tessera
