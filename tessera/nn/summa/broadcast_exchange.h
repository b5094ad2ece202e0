#pragma once

#include <array>

#include "tessera/comm/process_group.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh_groups.h"
#include "tessera/nn/summa/workspace.h"

namespace tessera::nn::two_d {

/// Panels travel by broadcasts and reductions in the row and column groups, as
/// the paper writes them. Panel l + 1 travels while panel l is multiplied, and
/// a partial result while the next one is computed; two buffers of each kind. A
/// part of a block travels from a buffer when it is not contiguous in the block.
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
    at::Tensor home; // where a sum goes that could not be made in its place
  };
  void start_a(int step);
  void start_b(int step);
  static at::Tensor ready(Moving& panel);
  /// Whether parts of the result are whole sums: one mesh row adds alone.
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

} // namespace tessera::nn::two_d
