#include "tessera/offload/entry.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"

namespace tessera::offload {

namespace {

constexpr std::int64_t kLine = 64; // bytes; libtorch's memory begins at multiples of it

/// Bytes from the first to the last element; gaps between strides are among them.
std::int64_t span_bytes(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return (last + 1) * static_cast<std::int64_t>(tensor.itemsize());
}

at::Tensor as_bytes(void* at, std::int64_t bytes) {
  return at::from_blob(at, {bytes}, at::TensorOptions(at::kByte));
}

at::Tensor view_of(
    const c10::Storage& storage,
    std::int64_t offset,
    const std::vector<std::int64_t>& sizes,
    const std::vector<std::int64_t>& strides,
    const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  return at::empty({0}, options).set_(storage, offset, sizes, strides);
}

} // namespace

Entry::Entry(at::Tensor tensor, std::shared_ptr<Host> host, std::shared_ptr<Counters> counters)
    : host_(std::move(host)),
      counters_(std::move(counters)),
      options_(tensor.options().requires_grad(false)),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      offset_(tensor.storage_offset()),
      bytes_(span_bytes(tensor)),
      into_line_(reinterpret_cast<std::intptr_t>(tensor.data_ptr()) % kLine),
      version_(static_cast<std::uint32_t>(tensor._version())),
      storage_(tensor.storage().getWeakStorageImpl()),
      here_(tensor.detach()) {
  if (into_line_ % static_cast<std::int64_t>(tensor.itemsize()) != 0) {
    into_line_ = 0;
  }
  place_ = host_->reserve(bytes_);
  leaving_ = host_->copy_out(as_bytes(here_.data_ptr(), bytes_), place_);
  ++counters_->copies_out;
  counters_->bytes_out += bytes_;
}

Entry::~Entry() {
  for (const auto& copy : {leaving_, coming_}) {
    try {
      if (copy != nullptr) {
        copy->wait();
      }
    } catch (const Error&) {
      // Nobody needs the bytes any more.
    }
  }
  host_->give_back(place_);
}

bool Entry::is(const at::Tensor& tensor) const {
  // The weak reference keeps another storage from this address.
  return storage_._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
         tensor.storage_offset() == offset_ && tensor.sizes() == sizes_ &&
         tensor.strides() == strides_ && tensor.scalar_type() == options_.dtype() &&
         static_cast<std::uint32_t>(tensor._version()) == version_;
}

bool Entry::settle() {
  if (leaving_ == nullptr) {
    return true;
  }
  if (!leaving_->done()) {
    return false;
  }
  const auto copy = std::exchange(leaving_, nullptr);
  copy->wait();
  if (!wanted_) {
    here_ = at::Tensor();
  }
  return true;
}

std::optional<c10::Storage> Entry::alive() const {
  auto held = storage_.lock();
  return held ? std::optional(c10::Storage(std::move(held))) : std::nullopt;
}

void Entry::fetch() {
  wanted_ = true;
  if (here_.defined()) {
    return;
  }
  if (const auto storage = alive()) {
    here_ = view_of(*storage, offset_, sizes_, strides_, options_);
    return;
  }
  const at::Tensor line = at::empty({into_line_ + bytes_}, options_.dtype(at::kByte));
  here_ = view_of(
      line.storage(),
      into_line_ / static_cast<std::int64_t>(options_.dtype().itemsize()),
      sizes_,
      strides_,
      options_);
  coming_ = host_->copy_in(place_, as_bytes(here_.data_ptr(), bytes_));
  ++counters_->copies_in;
  counters_->bytes_in += bytes_;
}

at::Tensor Entry::get() {
  fetch();
  if (coming_ != nullptr) {
    counters_->waits += coming_->done() ? 0 : 1;
    coming_->wait();
    coming_ = nullptr;
  }
  return here_;
}

} // namespace tessera::offload
