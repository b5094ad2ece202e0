#include "tessera/nn/summa/window_blocks.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/tensor/mapped_bytes.h"

namespace tessera::nn::summa {

namespace {

enum CounterOf : int { kOffered, kPartial, kDone };
constexpr const char* kWhat = "a product on the mesh";
constexpr std::size_t kLineBytes = 64;

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

std::string text_of(const WindowBlocks::Identity& product) {
  return tessera::str(
      "form ",
      product.form,
      " over a dimension of ",
      product.inner,
      product.transposed != 0 ? ", stored transposed," : "",
      " in ",
      static_cast<at::ScalarType>(product.dtype),
      product.rows > 0 ? tessera::str(" with ", product.rows, " rows of its own") : "",
      product.caller.name().empty() ? "" : tessera::str(" for '", product.caller.name(), "'"));
}

} // namespace

comm::DataType sum_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return comm::DataType::kF32;
    case at::kDouble:
      return comm::DataType::kF64;
    case at::kHalf:
      return comm::DataType::kF16;
    case at::kBFloat16:
      return comm::DataType::kBF16;
    default:
      throw ShapeError(tessera::str(
          "a product on a mesh of dtype ", tensor.scalar_type(), "; use f32, f64, f16 or bf16"));
  }
}

struct WindowBlocks::Region {
  Region(std::shared_ptr<comm::Window> shared, std::size_t offers)
      : window(std::move(shared)), offsets(offers, window->region_bytes() / 2) {}

  void stage(std::size_t bytes) {
    // Two products stage in turn, and what was written once stays.
    staged.resize(std::max(staged.bytes(), static_cast<std::int64_t>(2 * bytes)));
  }

  std::shared_ptr<comm::Window> window;
  std::mutex mutex; // tensors may be freed on any thread
  FirstFit offsets; // guarded by mutex
  MappedBytes staged; // of staged blocks and partial results
};

WindowBlocks::WindowBlocks(const MeshGroups& mesh, std::shared_ptr<comm::Window> window)
    : mesh_(mesh), region_(std::make_shared<Region>(std::move(window), 2 * sizeof(Offer))) {}

WindowBlocks::Offer& WindowBlocks::offer_of(int rank) const {
  return reinterpret_cast<Offer*>(region_->window->region(rank))[sequence_ % 2];
}

std::byte* WindowBlocks::staging() const {
  const comm::Window& window = *region_->window;
  const std::size_t quarter = window.region_bytes() / 4;
  return window.region(window.rank()) + (2 + sequence_ % 2) * quarter;
}

void WindowBlocks::open(const Identity& product, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    throw ShapeError(tessera::str(
        "a product on a mesh in shared memory of tensors on ",
        options.device().str(),
        "; this mesh moves CPU tensors"));
  }
  // This product stages where the one before the last did: wait for the readers of that one.
  if (sequence_ >= 2) {
    wait_until_done(sequence_ - 2);
  }
  used_ = 0;
  mine_ = Offer();
  mine_.product = product;
  mine_.product.caller = present_module();
  mine_.failures = region_->window->failures();
  options_ = options;
}

std::int64_t WindowBlocks::offer(const at::Tensor& block) {
  const comm::Window& window = *region_->window;
  std::byte* begin = window.region(window.rank());
  const auto* data = static_cast<const std::byte*>(block.data_ptr());
  if (block.is_contiguous() && data >= begin && data < begin + window.region_bytes()) {
    last_read_in_place_ = sequence_ + 1;
    return data - begin;
  }
  std::byte* to = staging() + used_;
  used_ += whole_lines(static_cast<std::size_t>(block.numel()) * block.element_size());
  if (used_ <= window.region_bytes() / 4) {
    at::from_blob(to, block.sizes(), block.options()).copy_(block);
  }
  return to - begin;
}

void WindowBlocks::offer_a(const at::Tensor& block) {
  mine_.a = offer(block);
}

void WindowBlocks::offer_b(const at::Tensor& block) {
  mine_.b = offer(block);
}

void WindowBlocks::reserve_parts(int count, std::int64_t elements) {
  const comm::Window& window = *region_->window;
  const std::size_t part = whole_lines(
      static_cast<std::size_t>(elements) *
      c10::elementSize(c10::typeMetaToScalarType(options_.dtype())));
  mine_.parts = staging() + used_ - window.region(window.rank());
  mine_.part_bytes = static_cast<std::int64_t>(part);
  used_ += part * static_cast<std::size_t>(count);
}

void WindowBlocks::publish() {
  comm::Window& window = *region_->window;
  const std::size_t room = window.region_bytes() / 4;
  if (used_ > room) {
    throw ConfigError(tessera::str(
        "a product on the mesh stages ",
        used_,
        " bytes, the shared memory of a rank has room for ",
        room,
        "; give MeshOptions::shared_bytes at least ",
        4 * used_));
  }
  region_->stage(used_);
  offer_of(window.rank()) = mine_;
  window.post(kOffered, sequence_ + 1);
}

const WindowBlocks::Offer& WindowBlocks::wait_for_offer(int rank) {
  comm::Window& window = *region_->window;
  window.wait(rank, kOffered, sequence_ + 1, kWhat);
  const Offer& theirs = offer_of(rank);
  if (theirs.failures != window.failures()) {
    window.differs(rank, static_cast<std::uint32_t>(theirs.failures));
  }
  if (theirs.product != mine_.product) {
    const std::string reason = tessera::str(
        "product ",
        sequence_,
        " on the mesh: rank ",
        mesh_.group().ranks()[static_cast<std::size_t>(rank)],
        " runs ",
        text_of(theirs.product),
        ", this one ",
        text_of(mine_.product),
        "; all ranks of a mesh must run the same products in one order");
    window.fail(reason);
    throw CommError(reason);
  }
  return theirs;
}

at::Tensor WindowBlocks::at_offset(int rank, std::int64_t offset, at::IntArrayRef sizes) const {
  return at::from_blob(region_->window->region(rank) + offset, sizes, options_);
}

at::Tensor WindowBlocks::my_part(int part, at::IntArrayRef sizes) const {
  return at_offset(region_->window->rank(), mine_.parts + part * mine_.part_bytes, sizes);
}

/// Returns an upper bound of the parts of any product (MeshBlocks::panels).
std::uint32_t WindowBlocks::most_parts() const {
  return static_cast<std::uint32_t>(mesh_.rows() + mesh_.columns());
}

/// Returns the counter's value once the part is done. The counter advances by
/// most_parts() with every product, however many parts that has.
std::uint32_t WindowBlocks::parts_until(int part) const {
  return sequence_ * most_parts() + static_cast<std::uint32_t>(part) + 1;
}

void WindowBlocks::post_part(int part) {
  region_->window->post(kPartial, parts_until(part));
}

void WindowBlocks::wait_for_part(int rank, int part) {
  region_->window->wait(rank, kPartial, parts_until(part), kWhat);
}

void WindowBlocks::close() {
  ++sequence_;
  region_->window->post(kDone, sequence_);
}

void WindowBlocks::abandon(const std::string& why) {
  region_->window->abandon(why);
}

void WindowBlocks::recover() {
  // All ranks have left their products, some of them one product later than others.
  at::Tensor latest = at::full({1}, static_cast<std::int64_t>(sequence_) + 1, at::kLong);
  mesh_.group().all_reduce(latest, comm::ReduceOp::kMax);
  sequence_ = static_cast<std::uint32_t>(latest.item<std::int64_t>());
  last_read_in_place_ = 0;
  comm::Window& window = *region_->window;
  window.recover();
  window.post(kOffered, sequence_);
  window.post(kPartial, sequence_ * most_parts());
  window.post(kDone, sequence_);
  mesh_.group().barrier();
}

void WindowBlocks::wait_until_done(std::uint32_t product) {
  comm::Window& window = *region_->window;
  for (int peer = 0; peer < mesh_.group().size(); ++peer) {
    if (peer != window.rank()) {
      window.wait(peer, kDone, product + 1, kWhat);
    }
  }
}

void WindowBlocks::wait_for_readers() {
  if (last_read_in_place_ > 0) {
    wait_until_done(last_read_in_place_ - 1);
  }
}

at::Tensor WindowBlocks::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  wait_for_readers(); // of a freed tensor whose memory this one may get
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) *
                     c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  std::size_t offset = 0;
  {
    const std::lock_guard lock(region_->mutex);
    offset = region_->offsets.take(bytes);
  }
  const comm::Window& window = *region_->window;
  return at::from_blob(
      window.region(window.rank()) + offset,
      sizes,
      [region = region_,
       offset,
       counted = std::make_shared<MappedBytes>(static_cast<std::int64_t>(bytes))](void*) {
        const std::lock_guard lock(region->mutex);
        region->offsets.give_back(offset);
      },
      options);
}

std::int64_t WindowBlocks::workspace_bytes() const {
  return region_->staged.bytes();
}

std::int64_t WindowBlocks::shared_bytes() const {
  const std::lock_guard lock(region_->mutex);
  return workspace_bytes() + static_cast<std::int64_t>(region_->offsets.high_water());
}

} // namespace tessera::nn::summa
