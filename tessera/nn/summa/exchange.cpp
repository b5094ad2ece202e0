#include "tessera/nn/summa/exchange.h"

#include <ATen/ATen.h>

namespace tessera::nn::summa {

namespace {

at::Tensor
part_of(const at::Tensor& block, std::int64_t dim, std::int64_t start, std::int64_t size) {
  return size == block.size(dim) ? block : block.narrow(dim, start, size);
}

std::vector<std::int64_t> stored(bool transposed, std::int64_t rows, std::int64_t columns) {
  return transposed ? std::vector<std::int64_t>{columns, rows}
                    : std::vector<std::int64_t>{rows, columns};
}

} // namespace

std::vector<Panel> Product::panels_of(Form form, const MeshBlocks& inner) {
  const bool rows_alone = form == Form::kTakeB || form == Form::kSumB;
  return rows_alone ? inner.row_panels() : inner.panels();
}

std::vector<std::int64_t> Product::a_sizes(int column) const {
  return {a.size(0), inner.over_columns.size(column)};
}

std::vector<std::int64_t> Product::b_sizes(int row) const {
  return stored(transposed, inner.over_rows.size(row), b.size(transposed ? 0 : 1));
}

at::Tensor Product::part_of_a(const at::Tensor& block, const Panel& panel) const {
  return part_of(block, 1, panel.start - inner.over_columns.start(panel.column), panel.size);
}

at::Tensor Product::part_of_b(const at::Tensor& block, const Panel& panel) const {
  const std::int64_t start = panel.start - inner.over_rows.start(panel.row);
  return part_of(block, transposed ? 1 : 0, start, panel.size);
}

at::Tensor Product::part_of_out(const Panel& panel) const {
  return form == Form::kABt ? part_of_a(out, panel) : part_of_b(out, panel);
}

std::vector<std::int64_t> Product::panel_a_sizes(const Panel& panel) const {
  return {a.size(0), panel.size};
}

std::vector<std::int64_t> Product::panel_b_sizes(const Panel& panel) const {
  return stored(transposed, panel.size, b.size(transposed ? 0 : 1));
}

std::vector<std::int64_t> Product::partial_sizes(const Panel& panel) const {
  return form == Form::kABt ? panel_a_sizes(panel) : stored(transposed, panel.size, b.size(1));
}

} // namespace tessera::nn::summa
