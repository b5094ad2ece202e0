// Does anything grow? soak [--steps N] [--warm-up W] [--bound BYTES]
// Trains a small model for N steps and prints, by rank, resident memory, shared
// memory, threads and file descriptors after the warm-up and at the end. Fails
// when shared memory, threads or descriptors changed, or when resident memory
// grew by more than the bound.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <malloc.h>

#include "tessera/tessera.h"

namespace {

constexpr int kWidth = 16;
constexpr int kSamples = 10; // lines printed between warm-up and end

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    a = register_module("a", tessera::nn::Linear(kWidth, kWidth));
    b = register_module("b", tessera::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + b(torch::tanh(a(x)));
  }
  tessera::nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    near = register_module("near", Block());
    far = register_module("far", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return far(near(x));
  }
  Block near{nullptr}, far{nullptr};
};
TESSERA_MODULE(Net);

struct Usage {
  std::int64_t resident = 0; // bytes
  std::int64_t shared = 0; // bytes of mappings of memory files
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
};

// "VmRSS:   1234 kB" or "Threads: 5" of /proc/self/status.
std::int64_t status_field(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    if (word == name) {
      std::int64_t value = 0;
      file >> value;
      return value;
    }
  }
  throw std::runtime_error("/proc/self/status has no " + name);
}

// Mappings of memory that has no file, or a file in /dev/shm.
std::int64_t shared_mappings() {
  std::ifstream file("/proc/self/maps");
  std::string line;
  std::int64_t bytes = 0;
  while (std::getline(file, line)) {
    const bool shared =
        line.find("/memfd:") != std::string::npos || line.find("/dev/shm/") != std::string::npos;
    if (shared) {
      const auto dash = line.find('-');
      bytes += std::stoll(line.substr(dash + 1), nullptr, 16) -
               std::stoll(line.substr(0, dash), nullptr, 16);
    }
  }
  return bytes;
}

Usage usage() {
  // What is free but not given back yet is no leak.
  ::malloc_trim(0);
  Usage now;
  now.resident = status_field("VmRSS:") * 1024;
  now.shared = shared_mappings();
  now.threads = status_field("Threads:");
  const std::filesystem::directory_iterator open("/proc/self/fd");
  now.descriptors = std::distance(begin(open), end(open));
  return now;
}

// All ranks' figures as lines, printed by rank 0.
void print(int step, const Usage& mine) {
  const std::vector<std::int64_t> row = {
      mine.resident, mine.shared, mine.threads, mine.descriptors};
  const auto all = tessera::allgather(row);
  if (tessera::rank() != 0) {
    return;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::printf(
        "soak: step %6d rank %zu: resident %7.2f MiB, shared %7.2f MiB, "
        "threads %ld, descriptors %ld\n",
        step,
        rank,
        all[rank][0] / 1048576.0,
        all[rank][1] / 1048576.0,
        static_cast<long>(all[rank][2]),
        static_cast<long>(all[rank][3]));
  }
  std::fflush(stdout);
}

struct Arguments {
  int steps = 5000;
  int warm_up = 500;
  std::int64_t bound = std::int64_t{2} << 20;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--steps") {
      arguments.steps = std::stoi(argv[i + 1]);
    } else if (name == "--warm-up") {
      arguments.warm_up = std::stoi(argv[i + 1]);
    } else if (name == "--bound") {
      arguments.bound = std::stoll(argv[i + 1]);
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  if (argc % 2 == 0 || arguments.warm_up < 1 || arguments.warm_up >= arguments.steps) {
    throw std::invalid_argument(
        "every option needs a value, and the warm-up "
        "must end before the last step");
  }
  return arguments;
}

bool constant(const Usage& first, const Usage& last, std::int64_t bound) {
  return last.resident - first.resident <= bound && last.shared == first.shared &&
         last.threads == first.threads && last.descriptors == first.descriptors;
}

int run(const Arguments& arguments) {
  tessera::DistributedModel model{Net()};
  tessera::DistributedOptimizer optimizer(torch::optim::AdamW(model.parameters(), 1e-3));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  Usage first;
  Usage last;
  const int every = std::max(1, (arguments.steps - arguments.warm_up) / kSamples);
  for (int step = 1; step <= arguments.steps; ++step) {
    optimizer.zero_grad();
    train_step(torch::randn({8, kWidth}), torch::randn({8, kWidth}));
    optimizer.step();
    const int after = step - arguments.warm_up;
    if (after >= 0 && (after % every == 0 || step == arguments.steps)) {
      last = usage();
      first = after == 0 ? last : first; // the end of the warm-up
      print(step, last);
    }
  }
  const bool good = constant(first, last, arguments.bound);
  const auto all = tessera::allgather(good);
  const bool all_good = std::all_of(all.begin(), all.end(), [](bool one) { return one; });
  if (tessera::rank() == 0) {
    std::printf("soak: %s\n", all_good ? "constant" : "something grows");
  }
  return all_good ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(
        stderr, "soak: %s\nusage: soak [--steps N] [--warm-up W] [--bound BYTES]\n", error.what());
    return 2;
  }
  torch::set_num_threads(1);
  torch::manual_seed(1);
  tessera::Config config;
  config.pipeline_parallel_degree = 2;
  config.ddp = true;
  config.microbatches = 4;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 4 << 20;
  config.auto_partition = false;
  config.default_partition = 0;
  config.partition = {{"far", 1}};
  tessera::init(config);
  const int status = run(arguments);
  tessera::shutdown();
  return status;
}
