#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/shared_memory/window.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh_groups.h"
#include "tessera/nn/summa/window_blocks.h"
#include "tessera/nn/summa/window_rows.h"

namespace tessera::nn::summa {

/// Reads panels in the memory of their owner, for meshes whose ranks share memory.
/// A block in memory of `allocate` is not copied at all, any other once, into its
/// owner's region; products read it there. Partial results are computed in the
/// region of the rank that computes them and added by the owner of the sum.
class WindowExchange final : public Exchange {
 public:
  WindowExchange(const MeshGroups& mesh, std::shared_ptr<comm::Window> window);

  void begin(const Product& product) override;
  at::Tensor panel_a(int step) override;
  at::Tensor panel_b(int step) override;
  at::Tensor partial(int step) override;
  void send_partial(int step) override;
  void finish() override;
  WindowRows* rows() override {
    return &rows_;
  }
  void abandon(const std::string& why) override;
  void recover() override;
  void wait_for_readers() override;
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  std::int64_t workspace_bytes() const override;
  std::int64_t shared_bytes() const override;

 private:
  /// Return the rank in the whole mesh of the rank at that column of my row, or at
  /// that row of my column.
  int peer_in_row(int column) const;
  int peer_in_column(int row) const;
  static void
  count(comm::ProcessGroup& group, comm::Collective kind, int root, const at::Tensor& tensor);
  const Panel& panel_of(int step) const;
  /// Returns the number of ranks whose parts make up one sum.
  int adders() const;
  void add_partials(int step);

  const MeshGroups& mesh_;
  WindowBlocks blocks_;
  WindowRows rows_;
  const Product* product_ = nullptr;
};

} // namespace tessera::nn::summa
