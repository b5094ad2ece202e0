#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/engine.h"
#include "tessera/comm/world.h"
#include "tessera/ipc/segment.h"

namespace tessera::comm::inproc {

/// What the worlds of one process share.
class Hub;
std::shared_ptr<Hub> make_hub();

/// One rank of a world whose ranks are threads of this process. Objects pass
/// through the hub; groups run on the engine that `make_engine` gives, over
/// memory that the hub keeps for them.
class InprocWorld final : public World {
 public:
  using SegmentPtr = std::shared_ptr<const ipc::Segment>;
  /// Makes the engine of a group over a segment, and says the size of that segment.
  struct EngineMaker {
    std::function<std::size_t(int size)> segment_bytes;
    std::function<std::unique_ptr<Engine>(const GroupInfo& info, SegmentPtr segment)> make;
  };

  InprocWorld(
      std::shared_ptr<Hub> hub,
      int rank,
      int size,
      WorldOptions options,
      EngineMaker make_engine);

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return static_cast<int>(hosts_.size());
  }
  int local_rank() const override {
    return rank();
  }
  int local_size() const override {
    return size();
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

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<std::string> hosts_;
  WorldOptions options_;
  EngineMaker make_engine_;
  std::map<std::vector<int>, int> groups_made_;
};

} // namespace tessera::comm::inproc
