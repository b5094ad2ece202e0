// A transformer layer over tensor-parallel ranks beside the plain layer,
// forward and backward:
//
//   mpirun -n 2 bench_tensor_parallel [--dtype bf16] [--optimize memory]
//
// Every round times, one after the other, so that other load meets all alike:
//   one thread  rank 0, the plain layer on all samples; the others sleep
//   threads     the same with a thread for each rank
//   parts       every rank computes its share of heads and inner features, no
//               word exchanged: what the ranks cost each other
//   exchange    every rank moves the bytes of the layer and computes nothing
//   layer       the distributed layer
// The floor is one thread / ranks + bytes / measured bandwidth.
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/layers/transformer_layer.h"

#include "bench/support/measure.h"
#include "models/gpt.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::Summary;
using tessera::bench::summary_of;
namespace nn = tessera::nn;

struct Settings {
  std::int64_t hidden = 1024;
  std::int64_t heads = 16;
  std::int64_t sequence = 512;
  std::int64_t batch = 4; // of all ranks
  double dropout = 0.1;
  std::string dtype = "f32";
  std::string optimize = "speed";
  bool prescaled = false;
  int steps = 5;
  int warm_up = 2;
  bool with_threads = true;
  bool json = false;
};

nn::TransformerOptions layer_options(const Settings& s, int share) {
  nn::TransformerOptions o;
  o.num_attention_heads = s.heads / share;
  o.attention_head_size = s.hidden / s.heads;
  o.hidden_size = s.hidden;
  o.intermediate_size = 4 * s.hidden / share;
  o.attention_dropout_prob = s.dropout;
  o.hidden_dropout_prob = s.dropout;
  o.activation = "gelu_tanh";
  o.causal_mask_size = s.sequence;
  o.pre_layernorm = true;
  o.post_layernorm = false;
  return o;
}

struct Times {
  std::vector<double> one;
  std::vector<double> threads;
  std::vector<double> parts;
  std::vector<double> exchange;
  std::vector<double> layer;
  std::int64_t bytes = 0; // of a rank and a step
  double bandwidth = 0; // bytes / ms of a rank, measured
};

using Call = std::function<at::Tensor(const at::Tensor&)>;

void forward_backward(torch::nn::Module& module, const Call& call, const at::Tensor& data) {
  module.zero_grad();
  const at::Tensor x = data.detach().requires_grad_();
  call(x).sum().backward();
}

Times measure(const Settings& s, tessera::comm::World& world) {
  const int ranks = world.size();
  std::vector<int> everybody(ranks);
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto group = world.new_group("tp", everybody);
  const auto control = world.new_group("control", everybody);
  const auto dtype = s.dtype == "bf16" ? torch::kBFloat16 : torch::kFloat;

  nn::TensorParallel parallel;
  parallel.group = group.get();
  parallel.prescaled_batch = s.prescaled;
  parallel.distribution =
      s.optimize == "memory" ? nn::Distribution::kMemory : nn::Distribution::kSpeed;
  nn::set_tensor_parallel(parallel);
  nn::DistributedTransformerLayer layer(layer_options(s, 1));
  layer->to(dtype);
  nn::set_tensor_parallel({});
  nn::DistributedTransformerLayer part(layer_options(s, ranks));
  part->to(dtype);
  tessera::models::GptOptions gpt;
  gpt.n_embd = s.hidden;
  gpt.n_head = s.heads;
  gpt.n_positions = s.sequence;
  gpt.dropout = s.dropout;
  tessera::models::GptBlock plain(gpt);
  plain->to(dtype);

  torch::manual_seed(7);
  const at::Tensor all = torch::randn({s.batch, s.sequence, s.hidden}).to(dtype);
  const at::Tensor own =
      s.prescaled ? all
                  : all.narrow(0, world.rank() * (s.batch / ranks), s.batch / ranks).contiguous();
  const Call plain_call = [&](const at::Tensor& x) { return std::get<0>(plain(x)); };
  const Call part_call = [&](const at::Tensor& x) { return part->hidden_states(x); };
  const Call layer_call = [&](const at::Tensor& x) { return layer->hidden_states(x); };

  Times times;
  const std::int64_t before = group->traffic().bytes;
  forward_backward(*layer, layer_call, own);
  times.bytes = group->traffic().bytes - before;
  // As one all-gather: (ranks - 1) times a rank's slice leaves it.
  const std::int64_t slice = times.bytes / (ranks - 1);
  const at::Tensor sent = at::ones({slice}, at::kByte);
  const at::Tensor received = at::empty({slice * ranks}, at::kByte);

  const bool first = world.rank() == 0;
  const auto timed = [&](std::vector<double>& list, int round, const std::function<void()>& run) {
    control->barrier();
    const double time = milliseconds_of([&] {
      run();
      control->barrier();
    });
    if (round >= 0) {
      list.push_back(time);
    }
  };
  for (int round = -s.warm_up; round < s.steps; ++round) {
    timed(times.one, round, [&] {
      if (first) {
        forward_backward(*plain, plain_call, all);
      }
    });
    timed(times.threads, round, [&] {
      if (first && s.with_threads) {
        torch::set_num_threads(ranks);
        forward_backward(*plain, plain_call, all);
        torch::set_num_threads(1);
      }
    });
    timed(times.parts, round, [&] { forward_backward(*part, part_call, all); });
    timed(times.exchange, round, [&] { group->all_gather(received, sent); });
    timed(times.layer, round, [&] { forward_backward(*layer, layer_call, own); });
  }
  times.bandwidth = static_cast<double>(times.bytes) / summary_of(times.exchange).best;
  return times;
}

void report(const Settings& s, int ranks, const Times& times) {
  const Summary one = summary_of(times.one);
  const Summary threads = summary_of(times.threads);
  const Summary parts = summary_of(times.parts);
  const Summary exchange = summary_of(times.exchange);
  const Summary layer = summary_of(times.layer);
  const double floor = one.best / ranks + exchange.best;
  if (s.json) {
    nlohmann::json document = {
        {"benchmark", "tensor_parallel"},
        {"ranks", ranks},
        {"hidden", s.hidden},
        {"sequence", s.sequence},
        {"batch", s.batch},
        {"dtype", s.dtype},
        {"optimize", s.optimize},
        {"prescaled_batch", s.prescaled},
        {"one_thread_ms", one.best},
        {"parts_ms", parts.best},
        {"exchange_ms", exchange.best},
        {"layer_ms", layer.best},
        {"bytes_a_rank", times.bytes},
        {"floor_ms", floor},
        {"over_floor", layer.best / floor},
        {"over_parts", layer.best / (parts.best + exchange.best)}};
    if (s.with_threads) {
      document["threads_ms"] = threads.best;
      document["over_threads"] = layer.best / threads.best;
    }
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  const auto line = [](const char* name, const Summary& summary) {
    std::printf("%-40s %9.1f %9.1f\n", name, summary.best, summary.median);
  };
  std::printf(
      "%d ranks, %s, %s%s, hidden %ld, sequence %ld, batch %ld\n%-40s %9s "
      "%9s\n",
      ranks,
      s.dtype.c_str(),
      s.optimize.c_str(),
      s.prescaled ? ", prescaled" : "",
      static_cast<long>(s.hidden),
      static_cast<long>(s.sequence),
      static_cast<long>(s.batch),
      "milliseconds, forward + backward",
      "best",
      "median");
  line("plain layer, one thread", one);
  if (s.with_threads) {
    line("plain layer, as many threads as ranks", threads);
  }
  line("every rank its part, no exchange", parts);
  line("the layer's bytes alone", exchange);
  line("distributed layer", layer);
  std::printf(
      "%.1f MB leave a rank; floor %.1f ms; layer / floor %.3f\n"
      "layer / (parts + exchange) %.3f\n",
      static_cast<double>(times.bytes) / 1e6,
      floor,
      layer.best / floor,
      layer.best / (parts.best + exchange.best));
  if (s.with_threads) {
    std::printf("layer / threads %.3f\n", layer.best / threads.best);
  }
}

int run(const Settings& settings) {
  const auto world = tessera::comm::mpi_world({});
  if (world->size() < 2 || settings.heads % world->size() != 0 ||
      settings.batch % world->size() != 0) {
    throw tessera::ConfigError(tessera::str(
        "this program takes at least 2 ranks, whose number divides --heads ",
        settings.heads,
        " and --batch ",
        settings.batch,
        "; found ",
        world->size()));
  }
  const Times times = measure(settings, *world);
  if (world->rank() == 0) {
    report(settings, world->size(), times);
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("A transformer layer over tensor-parallel ranks");
  Settings s;
  app.add_option("--hidden", s.hidden, "width")->check(CLI::PositiveNumber);
  app.add_option("--heads", s.heads, "attention heads")->check(CLI::PositiveNumber);
  app.add_option("--sequence", s.sequence, "positions")->check(CLI::PositiveNumber);
  app.add_option("--batch", s.batch, "samples of all ranks")->check(CLI::PositiveNumber);
  app.add_option("--dropout", s.dropout, "all probabilities")->check(CLI::Range(0.0, 0.9));
  app.add_option("--dtype", s.dtype)->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--optimize", s.optimize)->check(CLI::IsMember({"speed", "memory"}));
  app.add_flag("--prescaled", s.prescaled, "all ranks get all samples");
  app.add_option("--steps", s.steps, "timed rounds")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", s.warm_up, "rounds that do not count")->check(CLI::NonNegativeNumber);
  app.add_flag(
      "!--no-threads",
      s.with_threads,
      "without the plain layer on several threads: on a loaded machine they "
      "spin against the others");
  app.add_flag("--json", s.json, "one JSON line in place of the table");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    return run(s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
