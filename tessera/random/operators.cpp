#include "tessera/random/operators.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/alpha_dropout_native.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/feature_alpha_dropout_native.h>
#include <ATen/ops/feature_dropout_native.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/log.h"
#include "tessera/random/mask.h"
#include "tessera/random/stream.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::random {

namespace {

/// Returns the stream that this call draws from; nullptr where torch's own function is to run.
Stream* stream_for(const at::Tensor& x, double probability, bool training) {
  const bool draws = training && probability > 0 && probability <= 1 && x.numel() > 0;
  return draws ? current() : nullptr;
}

at::Tensor dropped(const at::Tensor& x, double probability, bool training) {
  if (Stream* stream = stream_for(x, probability, training)) {
    return dropout(*stream, x, probability);
  }
  return at::native::dropout(x, probability, training);
}

at::Tensor& dropped_in_place(at::Tensor& x, double probability, bool training) {
  if (Stream* stream = stream_for(x, probability, training)) {
    const Place place = own_place(*stream, x.size(0), "dropout_");
    return x.mul_(dropout_mask(x.sizes(), x.options(), probability, next_use(*stream), place));
  }
  return at::native::dropout_(x, probability, training);
}

/// One number for all elements of a channel: [B, C, ...] -> [B, C, 1, ...].
at::Tensor channel_mask(Stream& stream, const at::Tensor& x, double probability) {
  TORCH_CHECK(x.dim() >= 2, "Feature dropout requires at least 2 dimensions in the input");
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = x.size(0);
  sizes[1] = x.size(1);
  const Place place = own_place(stream, x.size(0), "feature_dropout");
  return dropout_mask(sizes, x.options(), probability, next_use(stream), place);
}

at::Tensor dropped_by_channel(const at::Tensor& x, double probability, bool training) {
  if (Stream* stream = stream_for(x, probability, training)) {
    return x * channel_mask(*stream, x, probability);
  }
  return at::native::feature_dropout(x, probability, training);
}

at::Tensor& dropped_by_channel_in_place(at::Tensor& x, double probability, bool training) {
  if (Stream* stream = stream_for(x, probability, training)) {
    return x.mul_(channel_mask(*stream, x, probability));
  }
  return at::native::feature_dropout_(x, probability, training);
}

void refuse(const char* name, const at::Tensor& x, double probability, bool training) {
  if (stream_for(x, probability, training) != nullptr) {
    throw UserError(str(
        "torch::",
        name,
        " draws numbers that depend on the layout, but \"random\" is \"layout_independent\"; use "
        "torch::dropout, or write \"random\": \"by_task\""));
  }
}

/// Is torch's own function where no stream is in force.
template <
    const char* kName,
    typename Result,
    typename Given,
    Result (*kOfTorch)(Given, double, bool)>
Result refused(Given x, double probability, bool training) {
  refuse(kName, x, probability, training);
  return kOfTorch(x, probability, training);
}

template <const char* kName, at::Tensor (*kOfTorch)(const at::Tensor&, double, bool)>
void refuse_in(torch::Library& kernels) {
  kernels.impl(kName, &refused<kName, at::Tensor, const at::Tensor&, kOfTorch>);
}
template <const char* kName, at::Tensor& (*kOfTorch)(at::Tensor&, double, bool)>
void refuse_in_place_in(torch::Library& kernels) {
  kernels.impl(kName, &refused<kName, at::Tensor&, at::Tensor&, kOfTorch>);
}

constexpr char kAlpha[] = "alpha_dropout";
constexpr char kAlphaInPlace[] = "alpha_dropout_";
constexpr char kAlphaByChannel[] = "feature_alpha_dropout";
constexpr char kAlphaByChannelInPlace[] = "feature_alpha_dropout_";

std::unique_ptr<torch::Library> kernels_of(c10::DispatchKey key) {
  auto made = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", TorchOptional<c10::DispatchKey>(key), __FILE__, __LINE__);
  made->impl("dropout", &dropped);
  made->impl("dropout_", &dropped_in_place);
  made->impl("feature_dropout", &dropped_by_channel);
  made->impl("feature_dropout_", &dropped_by_channel_in_place);
  refuse_in<kAlpha, at::native::alpha_dropout>(*made);
  refuse_in_place_in<kAlphaInPlace, at::native::alpha_dropout_>(*made);
  refuse_in<kAlphaByChannel, at::native::feature_alpha_dropout>(*made);
  refuse_in_place_in<kAlphaByChannelInPlace, at::native::feature_alpha_dropout_>(*made);
  return made;
}

/// Returns a hash of the default generator's state: nobody drew between two equal ones.
std::uint64_t position() {
  static const at::Generator instance = at::detail::getDefaultCPUGenerator();
  auto* generator = at::check_generator<at::CPUGeneratorImpl>(instance);
  const std::lock_guard lock(generator->mutex_);
  const at::mt19937_data_pod data = generator->engine().data();
  const std::array<std::uint64_t, 3> where{
      data.seed_, static_cast<std::uint64_t>(data.left_), data.next_};
  const std::uint64_t hash = hash_bytes(where.data(), sizeof(where));
  return hash_bytes(data.state_.data(), sizeof(data.state_), hash);
}

} // namespace

void take_over_dropout() {
  using Key = c10::DispatchKey;
  static const std::array<std::unique_ptr<torch::Library>, 4> kernels{
      kernels_of(Key::AutogradCPU),
      kernels_of(Key::CPU),
      kernels_of(Key::AutogradCUDA),
      kernels_of(Key::CUDA)};
}

OtherNumbersWatch::OtherNumbersWatch(bool active) : active_(active) {
  if (active_) {
    before_ = position();
  }
}

void OtherNumbersWatch::finish(const std::string& who) const {
  static std::atomic<bool> warned{false};
  if (!active_ || position() == before_ || warned.exchange(true)) {
    return;
  }
  log::warning(str(
      "\"random\" is \"layout_independent\", but ",
      who,
      " draws from torch's own generator (randn, bernoulli, a mask made by hand), so what it draws "
      "depends on microbatches, replicas and partition; use torch::dropout, or draw outside of the "
      "step and pass the numbers as an argument"));
}

} // namespace tessera::random
