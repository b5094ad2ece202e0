#include "tessera/nn/summa/window_exchange.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/comm/reduce_kernels.h"

namespace tessera::nn::two_d {

WindowExchange::WindowExchange(const MeshGroups& mesh, std::shared_ptr<comm::Window> window)
    : mesh_(mesh), blocks_(mesh, std::move(window)), rows_(mesh, blocks_) {}

int WindowExchange::peer_in_row(int column) const {
  return mesh_.layout().position_at({mesh_.row(), column});
}

int WindowExchange::peer_in_column(int row) const {
  return mesh_.layout().position_at({row, mesh_.column()});
}

void WindowExchange::begin(const Product& product) {
  product_ = &product;
  blocks_.open(
      {static_cast<std::int64_t>(product.form),
       static_cast<std::int64_t>(product.out.scalar_type()),
       product.inner.length(),
       static_cast<std::int64_t>(product.transposed)},
      product.out.options());
  if (moves_a(product.form)) {
    blocks_.offer_a(product.a);
  }
  if (moves_b(product.form)) {
    blocks_.offer_b(product.b);
  }
  if (adds_parts(product.form)) {
    // That of step 0 is the largest.
    blocks_.reserve_parts(mesh_.side(), c10::multiply_integers(product.partial_sizes(0)));
  }
  blocks_.publish();
}

at::Tensor WindowExchange::panel_a(int step) {
  const Product& p = *product_;
  at::Tensor panel = p.a;
  if (step != mesh_.column()) {
    const int peer = peer_in_row(step);
    panel = blocks_.at_offset(peer, blocks_.wait_for_offer(peer).a, p.panel_a_sizes(step));
  }
  count(mesh_.row_group(), comm::Collective::kBroadcast, mesh_.in_row(step), panel);
  return panel;
}

at::Tensor WindowExchange::panel_b(int step) {
  const Product& p = *product_;
  at::Tensor panel = p.b;
  if (step != mesh_.row()) {
    const int peer = peer_in_column(step);
    panel = blocks_.at_offset(peer, blocks_.wait_for_offer(peer).b, p.panel_b_sizes(step));
  }
  count(mesh_.column_group(), comm::Collective::kBroadcast, mesh_.in_column(step), panel);
  return panel;
}

at::Tensor WindowExchange::partial(int step) {
  const Product& p = *product_;
  const bool along_row = p.form == Form::kABt;
  if (step == (along_row ? mesh_.column() : mesh_.row())) {
    return p.out;
  }
  return blocks_.my_part(step, p.partial_sizes(step));
}

void WindowExchange::send_partial(int step) {
  blocks_.post_part(step);
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
    blocks_.wait_for_part(peer, mine);
    const auto& theirs = blocks_.wait_for_offer(peer);
    sources.push_back(
        blocks_.at_offset(peer, theirs.parts + mine * theirs.part_bytes, p.out.sizes()).data_ptr());
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
  blocks_.close();
  product_ = nullptr;
}

void WindowExchange::abandon(const std::string& why) {
  blocks_.abandon(why);
}

void WindowExchange::recover() {
  product_ = nullptr;
  blocks_.recover();
}

void WindowExchange::wait_for_readers() {
  blocks_.wait_for_readers();
}

at::Tensor WindowExchange::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return blocks_.allocate(sizes, options);
}

std::int64_t WindowExchange::workspace_bytes() const {
  return blocks_.workspace_bytes() + rows_.workspace_bytes();
}

std::int64_t WindowExchange::shared_bytes() const {
  return blocks_.shared_bytes();
}

void WindowExchange::count(
    comm::ProcessGroup& group,
    comm::Collective kind,
    int root,
    const at::Tensor& tensor) {
  comm::Operation operation;
  operation.kind = kind;
  operation.type = sum_type(tensor);
  operation.root = root;
  operation.count = tensor.numel();
  group.traffic().calls.fetch_add(1, std::memory_order_relaxed);
  group.traffic().bytes.fetch_add(
      comm::traffic_bytes(operation, group.size(), group.rank()), std::memory_order_relaxed);
}

} // namespace tessera::nn::two_d
