#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::transport::testing {

/// A world that says its ranks live on other hosts than they do, or share no
/// memory, so that one machine can test what happens between nodes. All else is
/// the real one.
class SplitWorld : public comm::World {
 public:
  SplitWorld(
      comm::World& real,
      std::vector<std::string> hosts,
      const std::string& same_node = "auto")
      : real_(real), hosts_(std::move(hosts)), options_(real.options()) {
    options_.same_node = same_node;
  }

  int rank() const override {
    return real_.rank();
  }
  int size() const override {
    return real_.size();
  }
  int local_rank() const override {
    return real_.local_rank();
  }
  int local_size() const override {
    return real_.local_size();
  }
  const std::vector<std::string>& hosts() const override {
    return hosts_;
  }
  const comm::WorldOptions& options() const override {
    return options_;
  }
  comm::ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) override {
    return real_.new_group(name, ranks);
  }
  void send(int peer, const c10::IValue& value, int tag) override {
    real_.send(peer, value, tag);
  }
  c10::IValue receive(int peer, int tag) override {
    return real_.receive(peer, tag);
  }
  [[noreturn]] void abort(const std::string& message, int code) override {
    real_.abort(message, code);
    std::abort(); // not reached; the compiler cannot know
  }

 private:
  comm::World& real_;
  std::vector<std::string> hosts_;
  comm::WorldOptions options_;
};

} // namespace tessera::transport::testing
