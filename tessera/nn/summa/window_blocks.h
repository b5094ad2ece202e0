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
#include "tessera/nn/summa/first_fit.h"
#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::summa {

/// The memory that the ranks of a mesh share. In each product a rank offers its
/// blocks there, and the other ranks read them in place.
///
/// A rank's region holds, in this order: the offers of this and of the last
/// product; memory of `allocate`; staged blocks and partial results of even
/// products; those of odd products. Nothing is overwritten before all its readers
/// are done, so ranks may be one product apart.
///
/// A product calls `open`, then `offer_a`, `offer_b` and `reserve_parts` as it
/// needs them, then `publish`. From then on it can wait for the offers of other
/// ranks and read their blocks. It ends with `close`.
/// Collective over the mesh. Threads: one at a time; tensors of `allocate` may
/// be freed on any.
class WindowBlocks {
 public:
  /// What must be equal on all ranks of a product.
  struct Identity {
    std::int64_t form = 0;
    std::int64_t dtype = 0;
    std::int64_t inner = 0; ///< length of the whole dimension
    std::int64_t transposed = 0;
    std::int64_t rows = 0; ///< of an activation's block; 0: they may differ
    comm::Caller caller = {}; ///< `open` sets it

    bool operator==(const Identity&) const = default;
  };
  /// What a rank offers. Offsets are in its region, in bytes; -1: not offered.
  struct alignas(64) Offer {
    Identity product;
    std::int64_t failures = 0; ///< Window::failures() of the rank when the product began
    std::int64_t a = -1;
    std::int64_t b = -1;
    std::int64_t parts = -1; ///< part i begins at parts + i * part_bytes
    std::int64_t part_bytes = 0;
  };

  WindowBlocks(const MeshGroups& mesh, std::shared_ptr<comm::Window> window);

  /// Begins a product, once all ranks have read what was staged two products ago.
  /// Throws: ShapeError for tensors that are not on the CPU.
  void open(const Identity& product, const at::TensorOptions& options);
  /// Offers `block`, which is copied unless it lies in memory of `allocate`.
  void offer_a(const at::Tensor& block);
  void offer_b(const at::Tensor& block);
  /// Reserves room for `count` partial results of up to `elements` elements each.
  void reserve_parts(int count, std::int64_t elements);
  /// Makes the offers visible to the other ranks.
  /// Throws: ConfigError when they do not fit into the shared memory.
  void publish();

  /// Waits for and returns what `rank` of the whole mesh offers in this product.
  /// Throws: CommError when that rank runs another product; PeerFailed.
  const Offer& wait_for_offer(int rank);
  /// Returns a tensor over memory of `rank`, in the product's dtype.
  at::Tensor at_offset(int rank, std::int64_t offset, at::IntArrayRef sizes) const;
  /// Returns the memory of one of this rank's own partial results.
  at::Tensor my_part(int part, at::IntArrayRef sizes) const;
  /// Lets other ranks read this rank's partial results up to `part`.
  void post_part(int part);
  /// Waits until `rank` has posted its partial results up to `part`.
  void wait_for_part(int rank, int part);
  /// Ends the product: this rank reads no memory of the others any more.
  void close();

  // The following work as in Exchange.
  void abandon(const std::string& why);
  void recover();
  void wait_for_readers();
  at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options);
  std::int64_t workspace_bytes() const;
  std::int64_t shared_bytes() const;

 private:
  struct Region; // the shared memory and which of it is in use; tensors of `allocate` keep it alive

  Offer& offer_of(int rank) const;
  std::uint32_t most_parts() const;
  std::uint32_t parts_until(int part) const;
  std::byte* staging() const;
  std::int64_t offer(const at::Tensor& block);
  void wait_until_done(std::uint32_t product);

  const MeshGroups& mesh_;
  std::shared_ptr<Region> region_;
  at::TensorOptions options_;
  Offer mine_; // of the current product; others see a copy of it
  std::uint32_t sequence_ = 0; // number of the current product
  std::uint32_t last_read_in_place_ = 0; // 1 + the last product that copied nothing; 0: none
  std::size_t used_ = 0; // bytes of the staging memory
};

/// Returns the data type of `tensor` for reductions.
/// Throws: ShapeError for a dtype other than f32, f64, f16 and bf16.
comm::DataType sum_type(const at::Tensor& tensor);

} // namespace tessera::nn::summa
