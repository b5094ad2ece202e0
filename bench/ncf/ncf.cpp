// Neural collaborative filtering with large embedding tables, divided over
// tensor-parallel ranks:
//
//   mpirun -n 4 bench_ncf
//
// own    every rank brings its samples; only the four tables are distributed,
//        the tower is data parallel (its gradients are all-reduced)
// equal  the baseline: all ranks get the global batch, as in Megatron-LM; no
//        indices are gathered, and the tower is computed on every rank
// Both take the same global batch, alternate step by step in one run, and use
// sparse gradients with SGD for the tables. The ratio of their samples a second is
// printed for data sets of two sizes: the paper's, and MovieLens 20M with fewer
// users and more items.
// Source: Karakus et al. 2021, section 7.3 and table 3 (tp 16, two data sets: 2.5
// and 1.9 times).
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/layers/embedding.h"

#include "bench/support/flat.h"
#include "bench/support/measure.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::Summary;
using tessera::bench::summary_of;
namespace nn = tessera::nn;

struct Sizes {
  std::int64_t users;
  std::int64_t items;
};
constexpr Sizes kOfPaper{318133, 1792};
constexpr Sizes kMovieLens{138493, 26744};

struct Settings {
  std::int64_t users = 0; // 0: data sets of both sizes, one after the other
  std::int64_t items = kOfPaper.items;
  std::int64_t mlp = 512; // width of each table of the tower
  std::int64_t gmf = 64;
  std::int64_t batch = 256; // of a rank with samples of its own
  int steps = 20;
  int warm_up = 3;
  bool json = false;
};

/// He et al. 2017, equation (12), with distributed tables.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Settings& s) {
    const auto table = [&](const char* name, std::int64_t rows, std::int64_t width) {
      nn::DistributedEmbeddingOptions options;
      options.num_embeddings = rows;
      options.embedding_dim = width;
      options.initializer_range = 0.01;
      options.sparse = true;
      auto made = register_module(name, nn::DistributedEmbedding(options));
      tables.push_back(made->weight);
      return made;
    };
    mf_user = table("mf_user", s.users, s.gmf);
    mf_item = table("mf_item", s.items, s.gmf);
    mlp_user = table("mlp_user", s.users, s.mlp);
    mlp_item = table("mlp_item", s.items, s.mlp);
    auto width = 2 * s.mlp;
    for (int i = 0; i < 3; ++i) {
      tower->push_back(torch::nn::Linear(width, width / 2));
      tower->push_back(torch::nn::ReLU());
      width /= 2;
    }
    register_module("tower", tower);
    last = register_module("last", torch::nn::Linear(s.gmf + width, 1));
    dense = tower->parameters();
    const auto more = last->parameters();
    dense.insert(dense.end(), more.begin(), more.end());
  }
  at::Tensor forward(const at::Tensor& users, const at::Tensor& items) {
    const at::Tensor product = mf_user(users) * mf_item(items);
    const at::Tensor deep = tower->forward(at::cat({mlp_user(users), mlp_item(items)}, -1));
    return last(at::cat({product, deep}, -1)).squeeze(-1);
  }
  std::vector<at::Tensor> tables;
  std::vector<at::Tensor> dense;
  nn::DistributedEmbedding mf_user{nullptr}, mf_item{nullptr}, mlp_user{nullptr}, mlp_item{nullptr};
  torch::nn::Sequential tower;
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

struct Batch {
  at::Tensor users;
  at::Tensor items;
  at::Tensor labels;
};

Batch part_of(const Batch& batch, std::int64_t start, std::int64_t size) {
  return {
      batch.users.narrow(0, start, size),
      batch.items.narrow(0, start, size),
      batch.labels.narrow(0, start, size)};
}

/// One strategy: its model, group and step.
class Strategy {
 public:
  Strategy(
      const Settings& settings,
      tessera::comm::World& world,
      const std::vector<int>& ranks,
      bool equal)
      : group_(world.new_group(equal ? "equal" : "own", ranks)), equal_(equal) {
    nn::TensorParallel parallel;
    parallel.group = group_.get();
    parallel.prescaled_batch = equal;
    const nn::TensorParallelScope scope(parallel);
    torch::manual_seed(5);
    net_ = Net(settings);
    layout_ = tessera::flat_layout(net_->dense);
  }

  double step(const Batch& batch) {
    net_->zero_grad();
    for (at::Tensor& table : net_->tables) {
      table.mutable_grad() = at::Tensor(); // no dense zeros of a whole table
    }
    const at::Tensor loss = torch::binary_cross_entropy_with_logits(
        net_->forward(batch.users, batch.items), batch.labels);
    loss.backward();
    const torch::NoGradGuard no_grad;
    // With samples of its own a rank's loss is one of size() in the mean.
    const double share = equal_ ? 1.0 : 1.0 / group_->size();
    if (!equal_) {
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : net_->dense) {
        gradients.push_back(parameter.grad());
      }
      const at::Tensor flat = tessera::flatten(gradients, layout_);
      group_->all_reduce(flat);
      tessera::unflatten_into(flat, gradients, layout_);
    }
    for (at::Tensor& parameter : net_->dense) {
      parameter.sub_(parameter.grad(), kRate * share);
    }
    for (at::Tensor& table : net_->tables) {
      const at::Tensor gradient = table.grad();
      table.index_add_(0, gradient._indices()[0], gradient._values(), -kRate * share);
    }
    return loss.item<double>();
  }

  tessera::comm::Traffic& traffic() {
    return group_->traffic();
  }
  /// Sum of all values of this rank's parameters: for a check that the two
  /// strategies train the same model.
  double checksum() const {
    double sum = 0;
    for (const at::Tensor& parameter : net_->parameters()) {
      sum += parameter.detach().abs().sum(at::kDouble).item<double>();
    }
    return sum;
  }

 private:
  static constexpr double kRate = 0.1;
  tessera::comm::ProcessGroupPtr group_;
  bool equal_;
  Net net_{nullptr};
  tessera::FlatLayout layout_;
};

struct Measured {
  Summary time;
  std::int64_t bytes = 0; // of rank 0 and a step
  double checksum = 0;
};

/// Collective over the world.
void measure(const Settings& s, tessera::comm::World& everyone) {
  tessera::comm::World* world = &everyone;
  const int size = world->size();
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto control = world->new_group("control", ranks);
  Strategy own(s, *world, ranks, false);
  Strategy equal(s, *world, ranks, true);

  std::vector<double> own_times;
  std::vector<double> equal_times;
  const auto timed = [&](std::vector<double>& list, int round, const std::function<void()>& step) {
    control->barrier();
    const double time = milliseconds_of([&] {
      step();
      control->barrier();
    });
    if (round >= 0) {
      list.push_back(time);
    }
  };
  std::int64_t own_start = 0;
  std::int64_t equal_start = 0;
  for (int round = -s.warm_up; round < s.steps; ++round) {
    torch::manual_seed(100 + round);
    const std::int64_t all = s.batch * size;
    const Batch batch{
        torch::randint(s.users, {all}, torch::kLong),
        torch::randint(s.items, {all}, torch::kLong),
        torch::randint(2, {all}).to(torch::kFloat)};
    const Batch mine = part_of(batch, world->rank() * s.batch, s.batch);
    if (round == 0) {
      own_start = own.traffic().bytes;
      equal_start = equal.traffic().bytes;
    }
    timed(own_times, round, [&] { own.step(mine); });
    timed(equal_times, round, [&] { equal.step(batch); });
  }
  const Measured mine{
      summary_of(own_times), (own.traffic().bytes - own_start) / s.steps, own.checksum()};
  const Measured theirs{
      summary_of(equal_times), (equal.traffic().bytes - equal_start) / s.steps, equal.checksum()};
  if (world->rank() != 0) {
    return;
  }
  const auto rate = [&](const Measured& m) {
    return static_cast<double>(s.batch * size) / m.time.best * 1e3;
  };
  const double ratio = rate(mine) / rate(theirs);
  if (s.json) {
    const nlohmann::json document = {
        {"benchmark", "ncf"},
        {"ranks", size},
        {"users", s.users},
        {"items", s.items},
        {"batch_a_rank", s.batch},
        {"own_samples_a_second", rate(mine)},
        {"equal_samples_a_second", rate(theirs)},
        {"ratio", ratio},
        {"own_bytes_a_step", mine.bytes},
        {"equal_bytes_a_step", theirs.bytes}};
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  std::printf(
      "%d ranks, %ld users, %ld items, global batch %ld\n%-34s %10s %10s %12s %12s\n",
      size,
      static_cast<long>(s.users),
      static_cast<long>(s.items),
      static_cast<long>(s.batch * size),
      "",
      "best ms",
      "median ms",
      "samples/s",
      "MB a rank");
  const auto line = [&](const char* name, const Measured& m) {
    std::printf(
        "%-34s %10.2f %10.2f %12.0f %12.3f\n",
        name,
        m.time.best,
        m.time.median,
        rate(m),
        static_cast<double>(m.bytes) / 1e6);
  };
  line("own samples, tables distributed", mine);
  line("equal samples on all ranks", theirs);
  std::printf(
      "ratio %.2f; sums of the trained values differ by %.1e of %.1e\n",
      ratio,
      mine.checksum - theirs.checksum,
      mine.checksum);
}

void run(Settings settings) {
  const auto world = tessera::comm::mpi_world({});
  if (settings.users > 0) {
    measure(settings, *world);
    return;
  }
  for (const Sizes& sizes : {kOfPaper, kMovieLens}) {
    settings.users = sizes.users;
    settings.items = sizes.items;
    measure(settings, *world);
  }
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Collaborative filtering: own samples against equal samples");
  Settings s;
  auto* users = app.add_option("--users", s.users, "one data set of this size, not both")
                    ->check(CLI::PositiveNumber);
  app.add_option("--items", s.items)->check(CLI::PositiveNumber)->needs(users);
  app.add_option("--mlp", s.mlp, "width of each table of the tower")->check(CLI::PositiveNumber);
  app.add_option("--gmf", s.gmf)->check(CLI::PositiveNumber);
  app.add_option("--batch", s.batch, "samples of a rank")->check(CLI::PositiveNumber);
  app.add_option("--steps", s.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_flag("--json", s.json, "one JSON line in place of the table");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    run(s);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
