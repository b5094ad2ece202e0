#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backends/mpi/check.h"
#include "tessera/comm/backends/mpi/messenger.h"
#include "tessera/comm/engine.h"
#include "tessera/comm/world.h"

namespace tessera::comm::mpi {

/// The processes of MPI_COMM_WORLD. Objects pass as messages; groups run on the
/// engine that `make_engine` gives.
class MpiWorld final : public World {
 public:
  /// Makes the engine of a group of two ranks or more. Collective over the group.
  using EngineMaker =
      std::function<std::unique_ptr<Engine>(MpiWorld& world, const GroupInfo& info)>;

  /// MPI must be running. Collective over MPI_COMM_WORLD.
  MpiWorld(WorldOptions options, EngineMaker make_engine);

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return static_cast<int>(hosts_.size());
  }
  int local_rank() const override {
    return local_rank_;
  }
  int local_size() const override {
    return local_size_;
  }
  const std::vector<std::string>& hosts() const override {
    return hosts_;
  }
  const WorldOptions& options() const override {
    return options_;
  }

  ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) override;
  void send(int peer, const c10::IValue& value, int tag) override;
  c10::IValue receive(int peer, int tag) override;
  [[noreturn]] void abort(const std::string& message, int code) override;

  /// Returns whether MPI says that all ranks of the group share memory. Not collective.
  bool on_one_node(const GroupInfo& info) const;
  /// Makes the engine that uses messages. Collective over the group.
  std::unique_ptr<Engine> make_mpi_engine(const GroupInfo& info) const;

 private:
  void learn_hosts(int size);
  void learn_nodes(int size);

  WorldOptions options_;
  EngineMaker make_engine_;
  Communicator comm_;
  Messenger messenger_; // ends before its communicator
  int rank_ = 0;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::vector<std::string> hosts_;
  std::vector<int> nodes_; // of each rank: the smallest rank on its node
};

} // namespace tessera::comm::mpi
