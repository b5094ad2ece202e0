// The time of one empty remote module call and back between two ranks, beside
// the time of two context switches measured in the same run:
//
//   mpirun -n 2 bench_remote_call [--json]
//
// The module on rank 1 returns a view of its one-element input. Forward: calls
// without gradient, one after the other, in one step. Forward and backward: a
// chain of calls, each on the result of the one before, and its backward.
#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/context/context.h"
#include "tessera/tessera.h"

#include "bench/remote_call/context_switch.h"
#include "bench/support/measure.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::Summary;
using tessera::bench::summary_of;

struct EchoImpl : torch::nn::Module {
  EchoImpl() {
    register_parameter("unused", torch::ones({1})); // a partition must hold one
  }
  at::Tensor forward(const at::Tensor& x) {
    return x.view({-1});
  }
};
TESSERA_MODULE(Echo);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    scale = register_parameter("scale", torch::ones({1}));
    register_module("echo", echo);
  }
  at::Tensor forward(const at::Tensor& x, std::int64_t calls) {
    at::Tensor h = x * scale;
    for (std::int64_t i = 0; i < calls; ++i) {
      h = echo(h);
    }
    return h;
  }
  Echo echo;
  at::Tensor scale;
};
TESSERA_MODULE(Net);

struct Times {
  std::vector<double> switches;
  std::vector<double> forward;
  std::vector<double> both;
  double messages = 0; // rank 0 sends for a call and its backward
};

// Milliseconds of one of `calls`.
Times measure(tessera::bench::ContextSwitch* other, std::int64_t calls, int rounds) {
  tessera::DistributedModel model{Net()};
  std::int64_t made = calls;
  auto forward = tessera::step([&](at::Tensor x) {
    const at::NoGradGuard no_grad;
    return model(x, made).sum();
  });
  auto both = tessera::step([&](at::Tensor x) {
    auto sum = model(x, made).sum();
    model.backward(sum);
    return sum;
  });
  const at::Tensor x = torch::ones({1});
  Times times;
  const auto timed = [&](std::vector<double>& list, int round, const std::function<void()>& run) {
    tessera::barrier();
    const double time = milliseconds_of(run) / static_cast<double>(calls);
    tessera::barrier();
    if (round >= 0) {
      list.push_back(time);
    }
  };
  for (int round = -2; round < rounds; ++round) {
    timed(times.switches, round, [&] {
      for (std::int64_t i = 0; other != nullptr && i < calls; ++i) {
        other->round();
      }
    });
    timed(times.forward, round, [&] { forward(x); });
    auto& transport = *tessera::context().transport;
    const auto before = transport.counters().messages_sent;
    timed(times.both, round, [&] { both(x); });
    times.messages = static_cast<double>(transport.counters().messages_sent - before) /
                     static_cast<double>(calls);
  }
  return times;
}

void report(const Times& times, bool json) {
  const Summary switches = summary_of(times.switches);
  const Summary forward = summary_of(times.forward);
  const Summary both = summary_of(times.both);
  const auto us = [](const Summary& summary) {
    return nlohmann::json{{"best_us", summary.best * 1e3}, {"median_us", summary.median * 1e3}};
  };
  if (json) {
    const nlohmann::json document = {
        {"benchmark", "remote_call"},
        {"two_context_switches", us(switches)},
        {"forward", us(forward)},
        {"forward_backward", us(both)},
        {"messages_sent_forward_backward", times.messages},
        {"forward_over_switches", forward.best / switches.best},
        {"forward_backward_over_switches", both.best / (2 * switches.best)}};
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  const auto line = [](const char* name, const Summary& summary, double over) {
    std::printf("%-36s %9.1f %9.1f %7.2f\n", name, summary.best * 1e3, summary.median * 1e3, over);
  };
  std::printf("%-36s %9s %9s %7s\n", "microseconds", "best", "median", "ratio");
  line("two context switches (futex)", switches, 1);
  line("remote call and back, forward", forward, forward.best / switches.best);
  line("forward and backward (two calls)", both, both.best / (2 * switches.best));
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Time of an empty remote call, beside two context switches");
  std::int64_t calls = 200;
  int rounds = 20;
  bool json = false;
  app.add_option("--calls", calls, "in a step")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "timed steps")->check(CLI::PositiveNumber);
  app.add_flag("--json", json, "one JSON line in place of the table");
  CLI11_PARSE(app, argc, argv);
  tessera::bench::ContextSwitch other; // before MPI and threads: it forks
  torch::set_num_threads(1);
  try {
    tessera::Config config;
    config.pipeline_parallel_degree = 2;
    config.auto_partition = false;
    config.default_partition = 0;
    config.partition = {{"echo", 1}};
    tessera::init(config);
    const Times times = measure(tessera::rank() == 0 ? &other : nullptr, calls, rounds);
    if (tessera::rank() == 0) {
      report(times, json);
    }
    tessera::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
