#include "cli/train/run_facts.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include <torch/torch.h>

#include "tessera/tessera.h"

namespace tessera::cli {

double measured_peak(torch::ScalarType type) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kSide = 512;
  constexpr int kFewestRounds = 3;
  constexpr double kSeconds = 0.2;
  const torch::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSide, kSide}, type);
  const at::Tensor b = at::ones({kSide, kSide}, type);
  at::Tensor c = at::empty({kSide, kSide}, type);
  const double work = 2.0 * kSide * kSide * kSide * size();
  double best = 0;
  double spent = 0; // the same on every rank, so that all leave the loop together
  for (int round = 0; round < kFewestRounds || spent < kSeconds; ++round) {
    barrier();
    const auto start = Clock::now();
    at::mm_out(c, a, b);
    const std::chrono::duration<double> mine = Clock::now() - start;
    double slowest = 0;
    for (const double seconds : allgather(mine.count())) {
      slowest = std::max(slowest, seconds);
    }
    spent += slowest;
    best = std::max(best, work / std::max(slowest, 1e-9));
  }
  return best;
}

std::string new_run_id() {
  std::random_device random;
  std::string id;
  for (int digit = 0; digit < 16; ++digit) {
    id += "0123456789abcdef"[random() % 16];
  }
  return id;
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(word);
  }
  return words;
}

std::string program_version() {
  return "tessera " TESSERA_VERSION ", libtorch " TORCH_VERSION;
}

} // namespace tessera::cli
