#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "tessera/comm/shm/window.h"
#include "tessera/nn/two_d/arena.h"
#include "tessera/nn/two_d/exchange.h"
#include "tessera/nn/two_d/mesh.h"

namespace tessera::nn::two_d {

/// Panels are read where their owner left them, for meshes whose ranks share
/// memory. A block that lies in memory of `allocate` is not copied at all, any
/// other once, into its owner's region; the product then reads it from there.
/// Partial results are computed in the region and added by their owner.
///
/// A region: what is offered in this and in the last product, memory of
/// `allocate`, staged panels and partial results of an even and of an odd
/// product. Nothing is overwritten before all who read it are done, so ranks
/// may be a product apart.
class WindowExchange final : public Exchange {
 public:
  WindowExchange(const Mesh& mesh, std::shared_ptr<comm::shm::Window> window);

  void begin(const Product& product) override;
  at::Tensor panel_a(int step) override;
  at::Tensor panel_b(int step) override;
  at::Tensor partial(int step) override;
  void send_partial(int step) override;
  void finish() override;
  void abandon(const std::string& why) override;
  void recover() override;
  void wait_for_readers() override;
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options)
      override;
  std::int64_t workspace_bytes() const override;
  std::int64_t shared_bytes() const override;

 private:
  struct Offer;
  struct Region; // the shared memory and what of it is taken

  /// Rank in the whole mesh.
  int peer_in_row(int column) const;
  int peer_in_column(int row) const;
  Offer& offer_of(int rank) const;
  std::byte* staging() const;
  std::int64_t offer_block(const at::Tensor& block, std::size_t& used);
  at::Tensor block_of(int rank, std::int64_t offset, at::IntArrayRef sizes)
      const;
  const Offer& wait_for_offer(int rank);
  void count(
      comm::ProcessGroup& group,
      comm::Collective kind,
      int root,
      const at::Tensor& tensor) const;
  void add_partials();
  void wait_until_done(std::uint32_t product);

  const Mesh& mesh_;
  std::shared_ptr<Region> region_;
  const Product* product_ = nullptr;
  std::uint32_t sequence_ = 0; // of the product that runs
  std::uint32_t last_read_in_place_ = 0; // 1 + the product; 0: none
  std::size_t partial_base_ = 0;
  std::size_t partial_stride_ = 0;
  std::size_t staged_high_water_ = 0;
};

} // namespace tessera::nn::two_d
