#include "tessera/nn/summa/window_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/nn/summa/add_up.h"

namespace tessera::nn::summa {

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
  if (moves_b(product.form) && mesh_.rows() > 1) {
    blocks_.offer_b(product.b);
  }
  if (adds_parts(product.form) && adders() > 1) {
    std::int64_t most = 0;
    for (const Panel& panel : product.panels) {
      most = std::max(most, c10::multiply_integers(product.partial_sizes(panel)));
    }
    blocks_.reserve_parts(static_cast<int>(product.panels.size()), most);
  }
  blocks_.publish();
}

const Panel& WindowExchange::panel_of(int step) const {
  return product_->panels[static_cast<std::size_t>(step)];
}

int WindowExchange::adders() const {
  return product_->form == Form::kABt ? mesh_.columns() : mesh_.rows();
}

at::Tensor WindowExchange::panel_a(int step) {
  const Product& p = *product_;
  const Panel& panel = panel_of(step);
  at::Tensor block = p.a;
  if (panel.column != mesh_.column()) {
    const int peer = peer_in_row(panel.column);
    block = blocks_.at_offset(peer, blocks_.wait_for_offer(peer).a, p.a_sizes(panel.column));
  }
  const at::Tensor part = p.part_of_a(block, panel);
  count(mesh_.row_group(), comm::Collective::kBroadcast, mesh_.in_row(panel.column), part);
  return part;
}

at::Tensor WindowExchange::panel_b(int step) {
  const Product& p = *product_;
  const Panel& panel = panel_of(step);
  at::Tensor block = p.b;
  if (panel.row != mesh_.row()) {
    const int peer = peer_in_column(panel.row);
    block = blocks_.at_offset(peer, blocks_.wait_for_offer(peer).b, p.b_sizes(panel.row));
  }
  const at::Tensor part = p.part_of_b(block, panel);
  count(mesh_.column_group(), comm::Collective::kBroadcast, mesh_.in_column(panel.row), part);
  return part;
}

at::Tensor WindowExchange::partial(int step) {
  const Product& p = *product_;
  const Panel& panel = panel_of(step);
  return p.adds_here(mesh_, panel) ? p.part_of_out(panel)
                                   : blocks_.my_part(step, p.partial_sizes(panel));
}

void WindowExchange::send_partial(int step) {
  if (adders() == 1) {
    return; // this rank's part already is the whole sum
  }
  blocks_.post_part(step);
  const bool along_row = product_->form == Form::kABt;
  const Panel& panel = panel_of(step);
  count(
      along_row ? mesh_.row_group() : mesh_.column_group(),
      comm::Collective::kReduce,
      along_row ? mesh_.in_row(panel.column) : mesh_.in_column(panel.row),
      partial(step));
}

void WindowExchange::add_partials(int step) {
  const Product& p = *product_;
  const bool along_row = p.form == Form::kABt;
  const int mine = along_row ? mesh_.column() : mesh_.row();
  const at::Tensor sum = p.part_of_out(panel_of(step));
  std::vector<at::Tensor> parts;
  for (int i = 0; i < adders(); ++i) {
    if (i == mine) {
      parts.push_back(sum);
      continue;
    }
    const int peer = along_row ? peer_in_row(i) : peer_in_column(i);
    blocks_.wait_for_part(peer, step);
    const auto& theirs = blocks_.wait_for_offer(peer);
    parts.push_back(blocks_.at_offset(peer, theirs.parts + step * theirs.part_bytes, sum.sizes()));
  }
  add_up(parts, sum);
}

void WindowExchange::finish() {
  if (adds_parts(product_->form) && adders() > 1) {
    for (int step = 0; step < static_cast<int>(product_->panels.size()); ++step) {
      if (product_->adds_here(mesh_, panel_of(step))) {
        add_partials(step);
      }
    }
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
  if (group.size() == 1) {
    return;
  }
  comm::Operation operation;
  operation.kind = kind;
  operation.type = sum_type(tensor);
  operation.root = root;
  operation.count = tensor.numel();
  group.traffic().calls.fetch_add(1, std::memory_order_relaxed);
  group.traffic().bytes.fetch_add(
      comm::traffic_bytes(operation, group.size(), group.rank()), std::memory_order_relaxed);
}

} // namespace tessera::nn::summa
