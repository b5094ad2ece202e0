#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera {

class Model;
namespace model {
class ModelCore;
}

/// Names and defaults follow torch's `join`.
struct JoinOptions {
  /// The gradients of replicas that have data are divided by the number of all replicas; false: by
  /// the number of those that have some, so that late steps are not smaller than early ones. With
  /// replica_samples their samples are counted, not replicas.
  bool divide_by_initial_world_size = true;
  /// An error on every rank when the first replica is out of data.
  bool throw_on_early_termination = false;
};

/// Training in which replicas have different numbers of batches:
///
///     tessera::Join join(model);
///     while (join.next(i < batches.size())) {
///       if (!join.joined()) {
///         batch = batches[i++];
///       }
///       optimizer.zero_grad();
///       train_step(batch.x, batch.y);
///       optimizer.step();
///     }
///
/// A replica that is out of data runs the same steps as the others, with any batch of the same
/// shape, such as its last one: its gradients count nothing, what forwards make of buffers is
/// dropped, and updates are those of the others. So everything that is collective finds all ranks,
/// whatever the script's loop has in it. The results of its steps mean nothing (`joined`).
/// When the last replica is out of data all have the buffers of that one. `save` inside the loop
/// gives all those of the first replica that has data; a state_dict has this rank's, of which a
/// joined replica's mean nothing. With ModelOptions::broadcast_buffers false every replica keeps
/// what its own forwards make of them, joined or not, and a checkpoint has those of the first
/// data-parallel rank.
///
/// The loss that `optimizer.step(closure)` returns is the one whose gradient the update used:
/// those of joined replicas count nothing in it, and it is divided as gradients are.
/// A gradient that a backward outside of `model.backward` makes is not multiplied by the weight.
/// One for all models that the loop trains; outside of steps.
/// Threads: step thread only.
/// Source: the library's documentation, `join`.
class Join {
 public:
  explicit Join(const Model& model, const JoinOptions& options = {});
  explicit Join(
      const std::vector<std::reference_wrapper<const Model>>& models,
      const JoinOptions& options = {});
  /// All replicas count alike again, and the next step begins with the buffers of the first that
  /// had data. Not collective.
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Returns whether any replica has a batch left. `has_batch`: this one has, which all ranks of an
  /// MP_GROUP say alike. Before every step. Collective over the world.
  /// Throws: UserError on every rank where ranks of an MP_GROUP say different things, where a
  /// replica has data again, and with throw_on_early_termination; ConfigError on every rank after
  /// it has returned false.
  bool next(bool has_batch);

  /// Returns whether this replica is out of data: the step that follows counts nothing. Not
  /// collective.
  bool joined() const {
    return joined_;
  }

 private:
  std::vector<std::weak_ptr<model::ModelCore>> models_;
  JoinOptions options_;
  std::int64_t active_ = -1; // replicas with data in the step before; -1: none was
  bool joined_ = false;
  bool ended_ = false;
};

} // namespace tessera
