#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::two_d {

class Exchange;

struct MeshOptions {
  topology::MeshArrangement arrangement = topology::MeshArrangement::kBunched;
  /// false: panels travel through the row and column groups even where ranks
  /// share memory.
  bool shared_memory = true;
  /// Address space of each rank's shared panels; 0: as much as the machine has
  /// memory. Pages are given when first written.
  std::size_t shared_bytes = 0;
};

/// A q x r mesh over a TP_GROUP: where this rank is, the groups of its row and
/// column, and how panels of a product travel in them.
///
/// All ranks run the same products in the same order. One thread at a time.
/// Source: Xu et al. 2021, section 2.4 and figure 8.
class Mesh : public MeshGroups {
 public:
  /// `group` and `world` must outlive the mesh. Collective over `group`.
  static std::shared_ptr<Mesh>
  make(comm::World& world, comm::ProcessGroup& group, const MeshOptions& options = {});
  /// A mesh of one node that is only looked at: rank 0 of `group`, whose other
  /// ranks need not exist, while it traces alone (shapes_only). `row` has as many
  /// ranks as the mesh has columns, `column` as many as it has rows.
  static std::shared_ptr<Mesh>
  outline(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Exchange& exchange() const {
    return *exchange_;
  }
  /// Whether a rank can read blocks of every other one (exchange().rows()), or
  /// could on the mesh that this outlines.
  bool reads_all() const;

  /// Activations have come to the mesh: sizes of this rank's block without the
  /// last one, and whether they are the same in all mesh rows. The same call on
  /// all ranks.
  void note_entered(c10::IntArrayRef leading, bool same);
  /// Whether an activation of such sizes is as long on every rank, so that all
  /// choose alike by them. False also where it is not known.
  bool as_long_everywhere(c10::IntArrayRef leading) const {
    return leading == c10::IntArrayRef(entered_);
  }

  /// As ProcessGroup::abandon, for the mesh's own groups and panels; `group()` is
  /// told apart, and recovers before the mesh does.
  void abandon(const std::string& why) const;
  void recover() const;

 private:
  explicit Mesh(MeshGroups groups);

  std::unique_ptr<Exchange> exchange_;
  bool outline_ = false;
  std::vector<std::int64_t> entered_; // the last, if alike in all mesh rows
};
using MeshPtr = std::shared_ptr<Mesh>;

/// The mesh of a module of the distribution "2d".
/// Throws: ConfigError when it was made without one.
const MeshPtr& mesh_of(const TensorParallel& parallel);

} // namespace tessera::nn::two_d
