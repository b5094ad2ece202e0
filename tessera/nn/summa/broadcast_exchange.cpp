#include "tessera/nn/summa/broadcast_exchange.h"

#include <ATen/ATen.h>

#include "tessera/nn/summa/with_memory.h"

namespace tessera::nn::summa {

namespace {

/// Returns `part` if a collective can take it, that is, if it is contiguous; else a copy in a
/// buffer.
template <typename Buffer>
at::Tensor to_send(const at::Tensor& part, const Buffer& buffer) {
  return part.is_contiguous() ? part : buffer().copy_(part);
}

} // namespace

void BroadcastExchange::begin(const Product& product) {
  product_ = &product;
  if (moves_a(product.form)) {
    a_ = with_memory(product.a).contiguous();
    start_a(0);
  }
  if (moves_b(product.form)) {
    b_ = with_memory(product.b).contiguous();
    start_b(0);
  }
}

void BroadcastExchange::start_a(int step) {
  const Panel& part = product_->panels[static_cast<std::size_t>(step)];
  Moving& panel = panels_a_[static_cast<std::size_t>(step % 2)];
  const auto buffer = [&] {
    return workspace_.take(
        Workspace::kA0 + step % 2, product_->panel_a_sizes(part), product_->a.options());
  };
  panel.tensor =
      part.column == mesh_.column() ? to_send(product_->part_of_a(a_, part), buffer) : buffer();
  panel.work = mesh_.row_group().broadcast_async(panel.tensor, mesh_.in_row(part.column));
}

void BroadcastExchange::start_b(int step) {
  const Panel& part = product_->panels[static_cast<std::size_t>(step)];
  Moving& panel = panels_b_[static_cast<std::size_t>(step % 2)];
  if (mesh_.rows() == 1) {
    panel.tensor = product_->part_of_b(b_, part);
    return;
  }
  const auto buffer = [&] {
    return workspace_.take(
        Workspace::kB0 + step % 2, product_->panel_b_sizes(part), product_->b.options());
  };
  panel.tensor =
      part.row == mesh_.row() ? to_send(product_->part_of_b(b_, part), buffer) : buffer();
  panel.work = mesh_.column_group().broadcast_async(panel.tensor, mesh_.in_column(part.row));
}

at::Tensor BroadcastExchange::ready(Moving& panel) {
  if (panel.work != nullptr) {
    panel.work->wait();
    panel.work.reset();
  }
  if (panel.home.defined()) {
    panel.home.copy_(panel.tensor);
    panel.home = at::Tensor();
  }
  return panel.tensor;
}

at::Tensor BroadcastExchange::panel_a(int step) {
  const at::Tensor panel = ready(panels_a_[static_cast<std::size_t>(step % 2)]);
  if (step + 1 < static_cast<int>(product_->panels.size())) {
    start_a(step + 1);
  }
  return panel;
}

at::Tensor BroadcastExchange::panel_b(int step) {
  const at::Tensor panel = ready(panels_b_[static_cast<std::size_t>(step % 2)]);
  if (step + 1 < static_cast<int>(product_->panels.size())) {
    start_b(step + 1);
  }
  return panel;
}

bool BroadcastExchange::stays() const {
  return product_->form != Form::kABt && mesh_.rows() == 1;
}

at::Tensor BroadcastExchange::partial(int step) {
  const Product& p = *product_;
  const Panel& part = p.panels[static_cast<std::size_t>(step)];
  Moving& panel = partials_[static_cast<std::size_t>(step % 2)];
  ready(panel); // waits until the partial result of step - 2 has left the buffer
  const auto buffer = [&] {
    return workspace_.take(Workspace::kPartial0 + step % 2, p.partial_sizes(part), p.out.options());
  };
  if (!p.adds_here(mesh_, part)) {
    panel.tensor = buffer();
    return panel.tensor;
  }
  const at::Tensor place = p.part_of_out(part);
  if (place.is_contiguous() || stays()) {
    panel.tensor = place;
    return panel.tensor;
  }
  panel.tensor = buffer();
  panel.home = place;
  if (p.accumulate) {
    panel.tensor.copy_(place);
  }
  return panel.tensor;
}

void BroadcastExchange::send_partial(int step) {
  if (stays()) {
    return;
  }
  const Panel& part = product_->panels[static_cast<std::size_t>(step)];
  Moving& panel = partials_[static_cast<std::size_t>(step % 2)];
  panel.work = product_->form == Form::kABt
                   ? mesh_.row_group().reduce_async(
                         panel.tensor, mesh_.in_row(part.column), comm::ReduceOp::kSum)
                   : mesh_.column_group().reduce_async(
                         panel.tensor, mesh_.in_column(part.row), comm::ReduceOp::kSum);
}

void BroadcastExchange::finish() {
  for (auto* panels : {&panels_a_, &panels_b_, &partials_}) {
    for (Moving& panel : *panels) {
      ready(panel);
      panel.tensor = at::Tensor();
    }
  }
  a_ = at::Tensor();
  b_ = at::Tensor();
  product_ = nullptr;
}

// Nothing is left to do: panels travel in the row and column groups, which the mesh abandons.
void BroadcastExchange::abandon(const std::string&) {}

void BroadcastExchange::recover() {
  for (auto* panels : {&panels_a_, &panels_b_, &partials_}) {
    for (Moving& panel : *panels) {
      panel = Moving(); // its transfer ended when the groups recovered
    }
  }
  a_ = at::Tensor();
  b_ = at::Tensor();
  product_ = nullptr;
}

at::Tensor BroadcastExchange::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

} // namespace tessera::nn::summa
