#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/nn/module/containers.h"
#include "tessera/runtime/server.h"

/// Pipelines whose ranks are threads of this process.
namespace tessera::runtime::testing {

constexpr int kWidth = 4;

/// Two layers and a wait before them; on its own rank, or inside `Outer`.
struct InnerImpl : torch::nn::Module {
  InnerImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (before) {
      before();
    }
    return torch::tanh(layer(x));
  }
  nn::Linear layer{nullptr};
  std::function<void()> before;
};
TESSERA_MODULE(Inner);

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", Inner());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return inner(x) + inner(x * 2);
  }
  Inner inner{nullptr};
};
TESSERA_MODULE(Outer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    near = register_module("near", Inner());
    outer = register_module("outer", Outer());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return outer(near(x)) + x;
  }
  Inner near{nullptr};
  Outer outer{nullptr};
};
TESSERA_MODULE(Net);

inline Net make_net() {
  torch::manual_seed(3);
  return Net();
}

/// `outer` on pp rank 1, `outer.inner` on the last one.
inline std::map<std::string, int> partition_of(int pp) {
  const int inner = pp - 1;
  return {
      {"", 0},
      {"near", 0},
      {"near.layer", 0},
      {"outer", pp > 1 ? 1 : 0},
      {"outer.inner", inner},
      {"outer.inner.layer", inner}};
}

/// One rank: its own copy of the model, its server.
struct Rank {
  Rank(
      int pp,
      int pp_rank,
      int microbatches,
      transport::Transport& transport,
      std::chrono::milliseconds timeout)
      : net(make_net()),
        table(net.ptr(), partition_of(pp), pp_rank),
        modules(pp_rank),
        recorder(pp_rank, pp_rank),
        schedule(schedule::make_schedule("interleaved", microbatches, 3)) {
    recorder.enable(true);
    modules.add(table, "Net");
    context.modules = &modules;
    context.transport = &transport;
    for (int i = 0; i < pp; ++i) {
      context.pp_ranks.push_back(i);
    }
    context.schedule = schedule.get();
    context.recorder = &recorder;
    context.timeout = timeout;
    context.random_streams = false;
    context.rank = pp_rank;
    table.drop_remote_tensors(context.pp_ranks);
  }

  /// One training step of the mean square over `x`, split by rows.
  std::vector<c10::IValue> step(int serial, const torch::Tensor& x) {
    if (server == nullptr) {
      server = std::make_unique<Server>(context);
    }
    const int microbatches = static_cast<int>(x.size(0)) / 2;
    StepWork work;
    work.step = serial;
    work.serial = serial;
    work.microbatches = microbatches;
    work.run = [&](int i) -> c10::IValue {
      const auto loss = net(x.narrow(0, 2 * i, 2)).pow(2).mean();
      server->backward({loss}, {torch::full_like(loss, 1.0 / microbatches)});
      return loss.detach();
    };
    return server->run_step(work);
  }

  Net net;
  ModuleTable table;
  ModuleDirectory modules;
  timeline::Recorder recorder;
  std::unique_ptr<schedule::Schedule> schedule;
  ServerContext context;
  std::unique_ptr<Server> server;
};

/// Runs `body(rank)` on one thread for each rank and waits for all.
inline void on_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

} // namespace tessera::runtime::testing
