#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::summa {

class Exchange;

struct MeshOptions {
  topology::MeshArrangement arrangement = topology::MeshArrangement::kBunched;
  /// Whether ranks that share memory read panels in it. If false, panels travel
  /// through the row and column groups.
  bool shared_memory = true;
  /// Address space for each rank's shared panels, in bytes; 0 means the size of the
  /// machine's memory. A page takes memory when it is first written.
  std::size_t shared_bytes = 0;
};

/// A q x r mesh over a TP_GROUP: this rank's row and column, their groups, and the
/// exchange that moves panels in them.
///
/// All ranks run the same products in the same order. Threads: one at a time.
/// Source: Xu et al. 2021, section 2.4 and figure 8.
class Mesh : public MeshGroups {
 public:
  /// Makes the mesh over `group`. `group` and `world` must outlive it. Collective over `group`.
  /// Throws: CommError when the ranks share memory but one of them cannot map the panels.
  static std::shared_ptr<Mesh>
  make(comm::World& world, comm::ProcessGroup& group, const MeshOptions& options = {});
  /// Makes a mesh on one node for a process that traces alone (shapes_only) as rank 0
  /// of `group`; the other ranks need not exist. `row` has as many ranks as the mesh
  /// has columns, `column` as many as it has rows. Not collective.
  static std::shared_ptr<Mesh>
  outline(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Exchange& exchange() const {
    return *exchange_;
  }
  /// Returns whether a rank can read the blocks of every other one (exchange().rows()). An
  /// outline answers for the mesh that it is traced for.
  bool reads_all() const;

  /// Records that activations have entered the mesh: `leading` holds the sizes of
  /// this rank's block without the last one, `same` whether they are equal in all
  /// mesh rows. All ranks make the same call.
  void note_entered(c10::IntArrayRef leading, bool same);
  /// Returns whether all ranks know that an activation of such sizes has them on every rank, so
  /// that all decide alike by them. False also where it is not known.
  bool as_long_everywhere(c10::IntArrayRef leading) const {
    return leading == c10::IntArrayRef(entered_);
  }

  /// As ProcessGroup::abandon and recover, for the mesh's own groups and panels.
  /// The caller does the same for `group()`, which must recover before the mesh.
  void abandon(const std::string& why) const;
  void recover() const;

 private:
  explicit Mesh(MeshGroups groups);

  std::unique_ptr<Exchange> exchange_;
  bool outline_ = false;
  std::vector<std::int64_t> entered_; // the last sizes, if equal in all mesh rows; else empty
};
using MeshPtr = std::shared_ptr<Mesh>;

/// Returns the mesh of a module of the distribution "2d".
/// Throws: ConfigError when the module was made without a mesh.
const MeshPtr& mesh_of(const TensorParallel& parallel);

} // namespace tessera::nn::summa
