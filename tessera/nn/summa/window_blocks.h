#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/comm/collective.h"
#include "tessera/comm/shared_memory/window.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/arena.h"
#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::two_d {

/// The memory that the ranks of a mesh share: what each offers of its blocks in
/// a product, for the others to read where it lies.
///
/// A region: what is offered in this and in the last product, memory of
/// `allocate`, staged blocks and partial results of an even and of an odd
/// product. Nothing is overwritten before all who read it are done, so ranks
/// may be a product apart.
///
/// For each product: `open`, `offer` and `reserve_parts`, `publish`; then the
/// others' offers can be waited for and their blocks read; `close`.
/// Collective over the mesh. Threads: one at a time; tensors of `allocate` may
/// be freed on any.
class WindowBlocks {
 public:
  /// What must be the same on all ranks.
  struct Identity {
    std::int64_t form = 0;
    std::int64_t dtype = 0;
    std::int64_t inner = 0; ///< whole length
    std::int64_t transposed = 0;
    std::int64_t rows = 0; ///< of an activation's block; 0: need not be equal

    bool operator==(const Identity&) const = default;
  };
  /// Offsets are in the region of the rank that offers; -1: nothing there.
  struct alignas(64) Offer {
    Identity product;
    std::int64_t failures = 0; ///< of this rank before the product
    std::int64_t a = -1;
    std::int64_t b = -1;
    std::int64_t parts = -1; ///< part i begins i * part_bytes further on
    std::int64_t part_bytes = 0;
  };

  WindowBlocks(const MeshGroups& mesh, std::shared_ptr<comm::Window> window);

  void open(const Identity& product, const at::TensorOptions& options);
  /// Where others find `block`: copied unless it lies in memory of `allocate`.
  void offer_a(const at::Tensor& block);
  void offer_b(const at::Tensor& block);
  /// Room for `count` partial results of up to `elements` each.
  void reserve_parts(int count, std::int64_t elements);
  void publish();

  /// What `rank` (of the whole mesh) offers in this product.
  /// Throws: CommError when it runs another one; PeerFailed.
  const Offer& wait_for_offer(int rank);
  /// Memory of `rank`, of the product's dtype.
  at::Tensor at_offset(int rank, std::int64_t offset, at::IntArrayRef sizes) const;
  /// My own partial result.
  at::Tensor my_part(int part, at::IntArrayRef sizes) const;
  /// My partial results up to this one may be read.
  void post_part(int part);
  void wait_for_part(int rank, int part);
  void close();

  // As in Exchange.
  void abandon(const std::string& why);
  void recover();
  void wait_for_readers();
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);
  std::int64_t workspace_bytes() const;
  std::int64_t shared_bytes() const;

 private:
  struct Region; // the shared memory and what of it is taken

  Offer& offer_of(int rank) const;
  std::uint32_t most_parts() const;
  std::uint32_t parts_until(int part) const;
  std::byte* staging() const;
  std::int64_t offer(const at::Tensor& block);
  void wait_until_done(std::uint32_t product);

  const MeshGroups& mesh_;
  std::shared_ptr<Region> region_;
  at::TensorOptions options_;
  Offer mine_; // until it is published
  std::uint32_t sequence_ = 0; // of the product that runs
  std::uint32_t last_read_in_place_ = 0; // 1 + the product; 0: none
  std::size_t used_ = 0; // of the staging memory
  std::size_t staged_high_water_ = 0;
};

/// The dtype of sums. Throws: ShapeError for one that cannot be multiplied.
comm::DataType sum_type(const at::Tensor& tensor);

} // namespace tessera::nn::two_d
