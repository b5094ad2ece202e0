#include "tessera/nn/summa/broadcast_exchange.h"

#include <ATen/ATen.h>

namespace tessera::nn::two_d {

void BroadcastExchange::begin(const Product& product) {
  product_ = &product;
  if (moves_a(product.form)) {
    a_ = product.a.contiguous();
    start_a(0);
  }
  if (moves_b(product.form)) {
    b_ = product.b.contiguous();
    start_b(0);
  }
}

void BroadcastExchange::start_a(int step) {
  Panel& panel = panels_a_[static_cast<std::size_t>(step % 2)];
  panel.tensor =
      step == mesh_.column()
          ? a_
          : workspace_.take(Workspace::kA0 + step % 2, product_->panel_a_sizes(step), a_.options());
  panel.work = mesh_.row_group().broadcast_async(panel.tensor, mesh_.in_row(step));
}

void BroadcastExchange::start_b(int step) {
  Panel& panel = panels_b_[static_cast<std::size_t>(step % 2)];
  panel.tensor =
      step == mesh_.row()
          ? b_
          : workspace_.take(Workspace::kB0 + step % 2, product_->panel_b_sizes(step), b_.options());
  panel.work = mesh_.column_group().broadcast_async(panel.tensor, mesh_.in_column(step));
}

at::Tensor BroadcastExchange::ready(Panel& panel) {
  if (panel.work != nullptr) {
    panel.work->wait();
    panel.work.reset();
  }
  return panel.tensor;
}

at::Tensor BroadcastExchange::panel_a(int step) {
  const at::Tensor panel = ready(panels_a_[static_cast<std::size_t>(step % 2)]);
  if (step + 1 < mesh_.side()) {
    start_a(step + 1);
  }
  return panel;
}

at::Tensor BroadcastExchange::panel_b(int step) {
  const at::Tensor panel = ready(panels_b_[static_cast<std::size_t>(step % 2)]);
  if (step + 1 < mesh_.side()) {
    start_b(step + 1);
  }
  return panel;
}

at::Tensor BroadcastExchange::partial(int step) {
  const Product& p = *product_;
  Panel& panel = partials_[static_cast<std::size_t>(step % 2)];
  ready(panel); // the one before the last has left the buffer
  const bool along_row = p.form == Form::kABt;
  const int mine = along_row ? mesh_.column() : mesh_.row();
  if (step == mine) {
    panel.tensor = p.out;
  } else {
    panel.tensor =
        workspace_.take(Workspace::kPartial0 + step % 2, p.partial_sizes(step), p.out.options());
  }
  return panel.tensor;
}

void BroadcastExchange::send_partial(int step) {
  Panel& panel = partials_[static_cast<std::size_t>(step % 2)];
  panel.work =
      product_->form == Form::kABt
          ? mesh_.row_group().reduce_async(panel.tensor, mesh_.in_row(step), comm::ReduceOp::kSum)
          : mesh_.column_group().reduce_async(
                panel.tensor, mesh_.in_column(step), comm::ReduceOp::kSum);
}

void BroadcastExchange::finish() {
  for (auto* panels : {&panels_a_, &panels_b_, &partials_}) {
    for (Panel& panel : *panels) {
      ready(panel);
      panel.tensor = at::Tensor();
    }
  }
  a_ = at::Tensor();
  b_ = at::Tensor();
  product_ = nullptr;
}

// Panels travel in the groups of row and column, which the mesh tells.
void BroadcastExchange::abandon(const std::string&) {}

void BroadcastExchange::recover() {
  for (auto* panels : {&panels_a_, &panels_b_, &partials_}) {
    for (Panel& panel : *panels) {
      panel = Panel(); // what was on its way has ended with its group
    }
  }
  a_ = at::Tensor();
  b_ = at::Tensor();
  product_ = nullptr;
}

at::Tensor BroadcastExchange::allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

} // namespace tessera::nn::two_d
