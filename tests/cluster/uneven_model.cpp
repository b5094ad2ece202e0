// A generator of uneven layers, as TransGAN stacks them: wide transformer
// layers on few positions, then narrow ones on many (Li et al. 2022,
// section 4.3). Their profile: a wide layer takes 2.04 ms a sample, a narrow
// one 4.0 ms with 1 / 4096 of the parameters and 16 times the activations. Here
// both take about 4 ms, with 1 / 240 of the parameters and 4 times the
// activations.
//
//   uneven_model profile CLUSTER.json MODEL.json   measures the layers on every
//                                                  host, for tessera plan
//   uneven_model train CONFIG.json STEPS           trains, prints seconds a
//   step
//
// Both run under the launcher, on all ranks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "tessera/comm/world.h"
#include "tessera/tessera.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWide = 6; // layers of each kind
constexpr int kNarrow = 6;
constexpr std::int64_t kWideWidth = 256;
constexpr std::int64_t kWidePositions = 64;
constexpr std::int64_t kNarrowWidth = 16;
constexpr std::int64_t kNarrowPositions = 4096;
constexpr std::int64_t kWindow = 64; // positions that attend to each other
constexpr std::int64_t kBatch = 16;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A pre-norm transformer layer whose positions attend within windows.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(std::int64_t width)
      : norm1(register_module("norm1", norm_of(width))),
        norm2(register_module("norm2", norm_of(width))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  // x_BSI -> y_BSI
  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t window = std::min(kWindow, x.size(1));
    const auto parts = qkv(norm1(x)).reshape({-1, window, 3 * x.size(2)}).chunk(3, 2);
    const double scale = 1 / std::sqrt(static_cast<double>(x.size(2)));
    const auto scores = (parts[0].matmul(parts[1].transpose(1, 2)) * scale).softmax(-1);
    const auto y = x + out(scores.matmul(parts[2]).reshape(x.sizes()));
    return y + down(torch::gelu(up(norm2(y))));
  }

  static torch::nn::LayerNorm norm_of(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TESSERA_MODULE(Layer);

// Channels become positions, each of them repeated.
struct GrowImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const auto rows = x.reshape({x.size(0), -1, kNarrowWidth});
    return rows.repeat_interleave(kNarrowPositions / rows.size(1), 1);
  }
};
TESSERA_MODULE(Grow);

struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl() : body(register_module("body", tessera::nn::Sequential())) {
    for (int i = 0; i < kWide; ++i) {
      body->push_back(Layer(kWideWidth));
    }
    body->push_back(Grow());
    for (int i = 0; i < kNarrow; ++i) {
      body->push_back(Layer(kNarrowWidth));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    return body->forward(x);
  }
  tessera::nn::Sequential body;
};
TESSERA_MODULE(Generator);

// Seconds of a call that last: the best of some windows longer than the periods
// in which a quota of processor time is given out.
template <typename Call>
double lasting_seconds(const Call& call) {
  constexpr double kWindowS = 0.1;
  constexpr int kRounds = 3;
  call();
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    int calls = 0;
    const auto begin = Clock::now();
    do {
      call();
      ++calls;
    } while (seconds_since(begin) < kWindowS);
    best = std::min(best, seconds_since(begin) / calls);
  }
  return best;
}

struct Measured {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t output = 0; // of one sample
  double seconds = 0; // of one sample
  double fixed = 0; // of them, what does not grow with samples
};

// The planner takes a backward for two forwards, so a forward is a third of both as they train:
// with what they keep for the backward, and gradients that are added up.
std::vector<Measured> measure_layers() {
  constexpr double kForwards = 3;
  std::vector<Measured> result;
  Generator generator;
  constexpr std::int64_t kSamples = 8;
  torch::Tensor x = torch::randn({kSamples, kWidePositions, kWideWidth});
  int index = 0;
  for (const auto& child : generator->body->children()) {
    Measured one;
    one.name = "body." + std::to_string(index++);
    for (const auto& parameter : child->parameters()) {
      one.parameters += parameter.numel();
    }
    const auto run = [&](const torch::Tensor& input) {
      if (auto* layer = child->as<LayerImpl>()) {
        return layer->forward(input);
      }
      return child->as<GrowImpl>()->forward(input);
    };
    const auto seconds_of = [&](const torch::Tensor& samples) {
      const torch::Tensor input = samples.detach().clone().requires_grad_();
      const torch::Tensor gradient = torch::ones_like(run(input));
      return lasting_seconds([&] { run(input).backward(gradient); }) / kForwards;
    };
    const double all = seconds_of(x);
    one.seconds = std::min(all, seconds_of(x.narrow(0, 0, 1)));
    const double each = (all - one.seconds) / (kSamples - 1);
    one.fixed = std::max(0.0, one.seconds - each);
    x = run(x).detach();
    one.output = x.numel() / kSamples;
    result.push_back(one);
  }
  return result;
}

nlohmann::ordered_json read_json(const char* path) {
  std::ifstream file(path);
  return nlohmann::ordered_json::parse(file);
}

void profile(const char* cluster_file, const char* model_file) {
  tessera::Config config;
  config.ddp = true;
  tessera::init(config);
  const std::vector<Measured> mine = measure_layers();
  // Every rank is a device of the kind that the cluster file says.
  const auto cluster = read_json(cluster_file);
  std::vector<std::string> kind_of_rank;
  for (const auto& node : cluster.at("nodes")) {
    for (int i = 0; i < node.at("count").get<int>(); ++i) {
      kind_of_rank.push_back(node.at("device").get<std::string>());
    }
  }
  nlohmann::ordered_json model;
  model["name"] = "uneven generator";
  model["global_batch_size"] = kBatch;
  model["precision"] = "fp32";
  for (const Measured& one : mine) {
    // A kind is as slow as its slowest device.
    std::map<std::string, std::pair<double, double>> slowest;
    const auto all = tessera::allgather(one.seconds);
    const auto fixed = tessera::allgather(one.fixed);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto& kind = slowest[kind_of_rank.at(rank)];
      kind = std::max(kind, {all[rank], fixed[rank]});
    }
    nlohmann::ordered_json layer;
    layer["name"] = one.name;
    layer["kind"] = "layer";
    layer["parameters"] = one.parameters;
    layer["output_elements_per_sample"] = one.output;
    for (const auto& [kind, seconds] : slowest) {
      layer["forward_seconds_per_sample"][kind]["1"] = seconds.first;
      layer["fixed_seconds"][kind] = seconds.second;
    }
    model["layers"].push_back(layer);
  }
  if (tessera::rank() == 0) {
    std::ofstream(model_file) << model.dump(1) << "\n";
  }
  tessera::shutdown();
}

void train(const char* config_file, int steps) {
  constexpr int kWarmUp = 7; // in fast mode six steps go before those that are repeated
  tessera::init(config_file);
  torch::manual_seed(1);
  tessera::DistributedModel model(Generator{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(1e-3)));
  auto train_step = tessera::step([&](torch::Tensor x) {
    const auto loss = model(x).square().mean();
    model.backward(loss);
    return loss;
  });
  const std::int64_t samples = kBatch / tessera::dp_size();
  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step < steps + kWarmUp; ++step) {
    const auto x = torch::randn({samples, kWidePositions, kWideWidth});
    tessera::barrier();
    const auto begin = Clock::now();
    optimizer.zero_grad();
    loss = train_step(x).reduce_mean().item<double>();
    optimizer.step();
    tessera::barrier();
    if (step >= kWarmUp) {
      seconds.push_back(seconds_since(begin));
    }
  }
  std::sort(seconds.begin(), seconds.end());
  if (tessera::rank() == 0) {
    std::printf("loss %.6f\nseconds a step %.4f\n", loss, seconds[seconds.size() / 2]);
  }
  tessera::shutdown();
}

} // namespace

int main(int argc, char** argv) {
  const std::string task = argc == 4 ? argv[1] : "";
  if (task == "profile") {
    profile(argv[2], argv[3]);
  } else if (task == "train") {
    train(argv[2], std::atoi(argv[3]));
  } else {
    std::fprintf(
        stderr,
        "usage: uneven_model profile CLUSTER.json MODEL.json | train "
        "CONFIG.json STEPS\n");
    return 2;
  }
  return 0;
}
