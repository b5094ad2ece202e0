#pragma once

#include <cstdint>

#include <torch/csrc/autograd/function.h>

namespace tessera::runtime {

class Server;

/// The autograd node of a module call that ran on another rank: its backward
/// is a request to that rank. On a CPU the engine runs nodes on the thread that
/// called backward, so waiting here suspends only that task.
/// Source: Karakus et al. 2021, section 4.2 and appendix B.
class RemoteBackward : public torch::autograd::Node {
 public:
  RemoteBackward(
      torch::autograd::edge_list inputs,
      Server& server,
      std::uint64_t call,
      int owner,
      int module,
      int microbatch)
      : torch::autograd::Node(std::move(inputs)),
        server_(server),
        call_(call),
        owner_(owner),
        module_(module),
        microbatch_(microbatch) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override {
    return "TesseraRemoteBackward";
  }
  static bool is(const torch::autograd::Node& node) {
    return dynamic_cast<const RemoteBackward*>(&node) != nullptr;
  }

 private:
  Server& server_;
  std::uint64_t call_;
  int owner_; // pp rank
  int module_;
  int microbatch_;
};

} // namespace tessera::runtime
