#include "tessera/nn/two_d/window_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/comm/reduce_kernels.h"

namespace tessera::nn::two_d {

namespace {

enum CounterOf : int { kOffered, kPartial, kDone };
constexpr const char* kWhat = "a product on the mesh";
constexpr std::size_t kLineBytes = 64;

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

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
          "a product on a mesh of dtype ",
          tensor.scalar_type(),
          "; use f32, f64, f16 or bf16"));
  }
}

} // namespace

/// What a rank says of its blocks in one product. Offsets are in its region.
struct alignas(64) WindowExchange::Offer {
  std::int64_t form;
  std::int64_t dtype;
  std::int64_t inner; // whole length
  std::int64_t transposed;
  std::int64_t failures; // of this rank before the product
  std::int64_t a;
  std::int64_t b;
  std::int64_t partial;
  std::int64_t partial_stride;
};

struct WindowExchange::Region {
  Region(std::shared_ptr<comm::shm::Window> shared, std::size_t offers)
      : window(std::move(shared)), arena(offers, window->region_bytes() / 2) {}

  std::shared_ptr<comm::shm::Window> window;
  std::mutex mutex; // tensors may be freed on any thread
  Arena arena; // guarded by mutex
};

WindowExchange::WindowExchange(
    const Mesh& mesh,
    std::shared_ptr<comm::shm::Window> window)
    : mesh_(mesh),
      region_(std::make_shared<Region>(std::move(window), 2 * sizeof(Offer))) {}

int WindowExchange::peer_in_row(int column) const {
  return mesh_.layout().position_at({mesh_.row(), column});
}

int WindowExchange::peer_in_column(int row) const {
  return mesh_.layout().position_at({row, mesh_.column()});
}

WindowExchange::Offer& WindowExchange::offer_of(int rank) const {
  return reinterpret_cast<Offer*>(region_->window->region(rank))[sequence_ % 2];
}

std::byte* WindowExchange::staging() const {
  const comm::shm::Window& window = *region_->window;
  const std::size_t quarter = window.region_bytes() / 4;
  return window.region(window.rank()) + (2 + sequence_ % 2) * quarter;
}

void WindowExchange::begin(const Product& product) {
  if (!product.out.is_cpu()) {
    throw ShapeError(tessera::str(
        "a product on a mesh in shared memory of tensors on ",
        product.out.device().str(),
        "; this mesh moves CPU tensors"));
  }
  product_ = &product;
  comm::shm::Window& window = *region_->window;
  // Who reads what I staged two products ago?
  if (sequence_ >= 2) {
    wait_until_done(sequence_ - 2);
  }
  std::size_t used = 0;
  Offer& mine = offer_of(window.rank());
  mine.form = static_cast<std::int64_t>(product.form);
  mine.dtype = static_cast<std::int64_t>(product.out.scalar_type());
  mine.inner = product.inner.length();
  mine.transposed = static_cast<std::int64_t>(product.transposed);
  mine.failures = window.failures();
  if (moves_a(product.form)) {
    mine.a = offer_block(product.a, used);
  }
  if (moves_b(product.form)) {
    mine.b = offer_block(product.b, used);
  }
  if (adds_parts(product.form)) {
    partial_base_ =
        static_cast<std::size_t>(staging() - window.region(window.rank())) +
        used;
    partial_stride_ = whole_lines(
        static_cast<std::size_t>(
            c10::multiply_integers(product.partial_sizes(0))) *
        product.out.element_size());
    used += partial_stride_ * static_cast<std::size_t>(mesh_.side());
    mine.partial = static_cast<std::int64_t>(partial_base_);
    mine.partial_stride = static_cast<std::int64_t>(partial_stride_);
  }
  const std::size_t room = window.region_bytes() / 4;
  if (used > room) {
    throw ConfigError(tessera::str(
        "a product on the mesh stages ",
        used,
        " bytes, the shared memory of a rank has room for ",
        room,
        "; give MeshOptions::shared_bytes at least ",
        4 * used));
  }
  staged_high_water_ = std::max(staged_high_water_, used);
  window.post(kOffered, sequence_ + 1);
}

std::int64_t WindowExchange::offer_block(
    const at::Tensor& block,
    std::size_t& used) {
  const comm::shm::Window& window = *region_->window;
  std::byte* begin = window.region(window.rank());
  const auto* data = static_cast<const std::byte*>(block.data_ptr());
  if (block.is_contiguous() && data >= begin &&
      data < begin + window.region_bytes()) {
    last_read_in_place_ = sequence_ + 1;
    return data - begin;
  }
  std::byte* to = staging() + used;
  used += whole_lines(
      static_cast<std::size_t>(block.numel()) * block.element_size());
  if (used <= window.region_bytes() / 4) {
    at::from_blob(to, block.sizes(), block.options()).copy_(block);
  }
  return to - begin;
}

const WindowExchange::Offer& WindowExchange::wait_for_offer(int rank) {
  region_->window->wait(rank, kOffered, sequence_ + 1, kWhat);
  const Offer& theirs = offer_of(rank);
  if (theirs.failures != region_->window->failures()) {
    region_->window->differs(rank, static_cast<std::uint32_t>(theirs.failures));
  }
  const bool same =
      theirs.form == static_cast<std::int64_t>(product_->form) &&
      theirs.dtype == static_cast<std::int64_t>(product_->out.scalar_type()) &&
      theirs.inner == product_->inner.length() &&
      theirs.transposed == static_cast<std::int64_t>(product_->transposed);
  if (!same) {
    const std::string reason = tessera::str(
        "product ",
        sequence_,
        " on the mesh: rank ",
        mesh_.group().ranks()[static_cast<std::size_t>(rank)],
        " runs form ",
        theirs.form,
        " over a dimension of ",
        theirs.inner,
        " and dtype ",
        static_cast<at::ScalarType>(theirs.dtype),
        ", this one form ",
        static_cast<int>(product_->form),
        " over ",
        product_->inner.length(),
        " and ",
        product_->out.scalar_type(),
        "; all ranks of a mesh must run the same products in one order");
    region_->window->fail(reason);
    throw CommError(reason);
  }
  return theirs;
}

at::Tensor WindowExchange::block_of(
    int rank,
    std::int64_t offset,
    at::IntArrayRef sizes) const {
  return at::from_blob(
      region_->window->region(rank) + offset, sizes, product_->out.options());
}

at::Tensor WindowExchange::panel_a(int step) {
  const Product& p = *product_;
  at::Tensor panel = p.a;
  if (step != mesh_.column()) {
    const int peer = peer_in_row(step);
    panel = block_of(peer, wait_for_offer(peer).a, p.panel_a_sizes(step));
  }
  count(
      mesh_.row_group(),
      comm::Collective::kBroadcast,
      mesh_.in_row(step),
      panel);
  return panel;
}

at::Tensor WindowExchange::panel_b(int step) {
  const Product& p = *product_;
  at::Tensor panel = p.b;
  if (step != mesh_.row()) {
    const int peer = peer_in_column(step);
    panel = block_of(peer, wait_for_offer(peer).b, p.panel_b_sizes(step));
  }
  count(
      mesh_.column_group(),
      comm::Collective::kBroadcast,
      mesh_.in_column(step),
      panel);
  return panel;
}

at::Tensor WindowExchange::partial(int step) {
  const Product& p = *product_;
  const bool along_row = p.form == Form::kABt;
  if (step == (along_row ? mesh_.column() : mesh_.row())) {
    return p.out;
  }
  return block_of(
      region_->window->rank(),
      static_cast<std::int64_t>(
          partial_base_ + static_cast<std::size_t>(step) * partial_stride_),
      p.partial_sizes(step));
}

void WindowExchange::send_partial(int step) {
  region_->window->post(
      kPartial,
      sequence_ * static_cast<std::uint32_t>(mesh_.side()) +
          static_cast<std::uint32_t>(step) + 1);
  const bool along_row = product_->form == Form::kABt;
  count(
      along_row ? mesh_.row_group() : mesh_.column_group(),
      comm::Collective::kReduce,
      along_row ? mesh_.in_row(step) : mesh_.in_column(step),
      partial(step));
}

void WindowExchange::add_partials() {
  const Product& p = *product_;
  const bool along_row = p.form == Form::kABt;
  const int mine = along_row ? mesh_.column() : mesh_.row();
  std::vector<const void*> sources;
  for (int i = 0; i < mesh_.side(); ++i) {
    if (i == mine) {
      sources.push_back(p.out.data_ptr());
      continue;
    }
    const int peer = along_row ? peer_in_row(i) : peer_in_column(i);
    region_->window->wait(
        peer,
        kPartial,
        sequence_ * static_cast<std::uint32_t>(mesh_.side()) +
            static_cast<std::uint32_t>(mine) + 1,
        kWhat);
    const Offer& theirs = wait_for_offer(peer);
    sources.push_back(
        region_->window->region(peer) + theirs.partial +
        mine * theirs.partial_stride);
  }
  comm::reduce(
      sum_type(p.out),
      comm::ReduceOp::kSum,
      p.out.data_ptr(),
      sources.data(),
      mesh_.side(),
      p.out.numel());
}

void WindowExchange::finish() {
  if (adds_parts(product_->form)) {
    add_partials();
  }
  ++sequence_;
  region_->window->post(kDone, sequence_);
  product_ = nullptr;
}

void WindowExchange::abandon(const std::string& why) {
  region_->window->abandon(why);
}

void WindowExchange::recover() {
  // All have left their products, some one product further than others.
  at::Tensor latest =
      at::full({1}, static_cast<std::int64_t>(sequence_) + 1, at::kLong);
  mesh_.group().all_reduce(latest, comm::ReduceOp::kMax);
  sequence_ = static_cast<std::uint32_t>(latest.item<std::int64_t>());
  product_ = nullptr;
  last_read_in_place_ = 0;
  comm::shm::Window& window = *region_->window;
  window.recover();
  window.post(kOffered, sequence_);
  window.post(kPartial, sequence_ * static_cast<std::uint32_t>(mesh_.side()));
  window.post(kDone, sequence_);
  mesh_.group().barrier();
}

void WindowExchange::wait_until_done(std::uint32_t product) {
  for (int i = 0; i < mesh_.side(); ++i) {
    for (const int peer : {peer_in_row(i), peer_in_column(i)}) {
      if (peer != region_->window->rank()) {
        region_->window->wait(peer, kDone, product + 1, kWhat);
      }
    }
  }
}

void WindowExchange::wait_for_readers() {
  if (last_read_in_place_ > 0) {
    wait_until_done(last_read_in_place_ - 1);
  }
}

at::Tensor WindowExchange::allocate(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  wait_for_readers(); // of what may have been there before
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) *
      c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  std::size_t offset = 0;
  {
    const std::lock_guard lock(region_->mutex);
    offset = region_->arena.take(bytes);
  }
  const comm::shm::Window& window = *region_->window;
  return at::from_blob(
      window.region(window.rank()) + offset,
      sizes,
      [region = region_, offset](void*) {
        const std::lock_guard lock(region->mutex);
        region->arena.give_back(offset);
      },
      options);
}

std::int64_t WindowExchange::workspace_bytes() const {
  return static_cast<std::int64_t>(2 * staged_high_water_);
}

std::int64_t WindowExchange::shared_bytes() const {
  const std::lock_guard lock(region_->mutex);
  return workspace_bytes() +
         static_cast<std::int64_t>(region_->arena.high_water());
}

void WindowExchange::count(
    comm::ProcessGroup& group,
    comm::Collective kind,
    int root,
    const at::Tensor& tensor) const {
  comm::Operation operation;
  operation.kind = kind;
  operation.type = sum_type(tensor);
  operation.root = root;
  operation.count = tensor.numel();
  group.traffic().calls.fetch_add(1, std::memory_order_relaxed);
  group.traffic().bytes.fetch_add(
      comm::traffic_bytes(operation, group.size(), group.rank()),
      std::memory_order_relaxed);
}

} // namespace tessera::nn::two_d
