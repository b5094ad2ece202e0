#pragma once

#include <array>

#include "tessera/comm/process_group.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh_groups.h"
#include "tessera/nn/summa/workspace.h"

namespace tessera::nn::summa {

/// Sends panels by broadcasts and reductions in the row and column groups, as in
/// the paper. Panel l + 1 travels while panel l is multiplied, and a partial
/// result travels while the next one is computed, so there are two buffers of
/// each kind. A panel that is not contiguous in its block is copied to a buffer
/// first, because collectives take contiguous memory.
/// Source: Xu et al. 2021, algorithms 1, 2, 3.
class BroadcastExchange final : public Exchange {
 public:
  explicit BroadcastExchange(const MeshGroups& mesh) : mesh_(mesh) {}

  void begin(const Product& product) override;
  at::Tensor panel_a(int step) override;
  at::Tensor panel_b(int step) override;
  at::Tensor partial(int step) override;
  void send_partial(int step) override;
  void finish() override;
  void abandon(const std::string& why) override;
  void recover() override;
  void wait_for_readers() override {}
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) override;
  std::int64_t workspace_bytes() const override {
    return workspace_.bytes();
  }
  std::int64_t shared_bytes() const override {
    return 0;
  }

 private:
  struct Moving {
    at::Tensor tensor;
    comm::WorkPtr work;
    at::Tensor home; // the part of `out` for a sum that is made in a buffer; else undefined
  };
  void start_a(int step);
  void start_b(int step);
  static at::Tensor ready(Moving& panel);
  /// Returns whether a rank's parts of the result already are whole sums, because
  /// the sum runs over the mesh rows and there is only one.
  bool stays() const;

  const MeshGroups& mesh_;
  Workspace workspace_;
  const Product* product_ = nullptr;
  at::Tensor a_; // contiguous
  at::Tensor b_;
  std::array<Moving, 2> panels_a_;
  std::array<Moving, 2> panels_b_;
  std::array<Moving, 2> partials_;
};

} // namespace tessera::nn::summa
