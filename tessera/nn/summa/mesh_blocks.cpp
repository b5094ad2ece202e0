#include "tessera/nn/summa/mesh_blocks.h"

#include <algorithm>

namespace tessera::nn::summa {

std::vector<Panel> MeshBlocks::panels() const {
  std::vector<Panel> result;
  Panel next;
  while (next.start < length()) {
    while (over_rows.start(next.row + 1) <= next.start) {
      ++next.row;
    }
    while (over_columns.start(next.column + 1) <= next.start) {
      ++next.column;
    }
    next.size =
        std::min(over_rows.start(next.row + 1), over_columns.start(next.column + 1)) - next.start;
    result.push_back(next);
    next.start += next.size;
  }
  return result;
}

std::vector<Panel> MeshBlocks::row_panels() const {
  std::vector<Panel> result;
  for (int row = 0; row < over_rows.parts(); ++row) {
    if (over_rows.size(row) > 0) {
      result.push_back({over_rows.start(row), over_rows.size(row), row, 0});
    }
  }
  return result;
}

} // namespace tessera::nn::summa
