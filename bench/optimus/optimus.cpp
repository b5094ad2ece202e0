// The experiments of Xu et al. 2021, section 5: transformer layers divided in
// two dimensions (Optimus) beside the same divided in one (Megatron), in one
// run. Run under mpirun with 4, 9 or 16 processes; `run` does all and draws.
//
//   mpirun -n 4 bench_optimus weak|strong|memory|savings [--json]
//
// weak     Table 2: hidden size grows with q, so parameters a rank stay equal
// strong   Table 3: one problem for all numbers of ranks
// memory   Figure 9: the largest batch whose step stays below --limit-mib of
//          tensors a rank, found by running steps
// savings  each of the three savings of section 3.2.3 by itself
//
// Ranks may outnumber cores: then times compare the two schemes, not numbers of
// ranks; bytes, messages and memory hold anywhere.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/managed/managed_stack.h"
#include "tessera/nn/summa/exchange.h"

#include "bench/support/measure.h"
#include "bench/support/megatron_stem.h"
#include "bench/support/memory_count.h"

namespace {

using namespace tessera; // one program
using bench::MegatronStem;
using bench::MemoryCount;
using bench::milliseconds_of;
using bench::summary_of;
using nlohmann::json;
namespace managed = nn::managed;
namespace summa = nn::summa;

struct Settings {
  int layers = 4;
  int sequence = 64;
  int width = 72; // hidden size of q = 1
  int batch = 12; // of Optimus for q = 1, Table 2: 48
  int rounds = 3;
  double limit_mib = 24;
  bool json = false;
  std::string scheme; // "": both
  std::string arrangement = "bunched"; // of ranks on the mesh, figure 8
};

/// What one step is asked to do.
struct Problem {
  std::int64_t batch;
  std::int64_t hidden;
  std::int64_t heads;
};

/// What one step cost this rank.
struct Cost {
  double forward_ms = 0;
  double backward_ms = 0;
  std::int64_t bytes = 0;
  std::int64_t messages = 0;
  std::int64_t memory = 0; // bytes at most, tensors and shared memory
};

class Scheme {
 public:
  virtual ~Scheme() = default;
  virtual const char* name() const = 0;
  virtual std::vector<std::int64_t> input_sizes() const = 0;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void backward(const at::Tensor& gradient) = 0;
  virtual std::vector<comm::ProcessGroup*> groups() = 0;
  virtual std::int64_t shared_bytes() const {
    return 0;
  }
};

class Optimus final : public Scheme {
 public:
  Optimus(
      comm::World& world,
      comm::ProcessGroup& group,
      const Settings& settings,
      const Problem& problem,
      const managed::Savings& savings = {})
      : mesh_(summa::Mesh::make(
            world,
            group,
            {.arrangement = settings.arrangement == "row_major"
                                ? topology::MeshArrangement::kRowMajor
                                : topology::MeshArrangement::kBunched})) {
    const nn::TransformerOptions options = layer_options(problem);
    nn::TensorParallel context;
    context.group = &group;
    context.distribution = nn::Distribution::kTwoD;
    context.mesh = mesh_;
    const nn::TensorParallelScope scope(context);
    std::vector<nn::DistributedTransformerLayer> layers;
    for (int i = 0; i < settings.layers; ++i) {
      layers.push_back(nn::DistributedTransformerLayer(options, nn::Role::kPart));
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : layers.back()->parameters()) {
        parameter.normal_(0, 0.02);
      }
    }
    sizes_ = {
        nn::Blocks(problem.batch, mesh_->rows()).size(mesh_->row()),
        settings.sequence,
        nn::Blocks(problem.hidden, mesh_->columns()).size(mesh_->column())};
    managed::Update update;
    if (savings.update_at_once) {
      update = [](at::Tensor& parameter, const at::Tensor& gradient) {
        parameter.sub_(gradient, 1e-3);
      };
    }
    stem_ = std::make_unique<managed::ManagedStack>(layers, savings, update);
  }
  const char* name() const override {
    return "Optimus";
  }
  std::vector<std::int64_t> input_sizes() const override {
    return sizes_;
  }
  at::Tensor forward(const at::Tensor& x) override {
    return stem_->forward(x);
  }
  void backward(const at::Tensor& gradient) override {
    stem_->backward(gradient);
  }
  std::vector<comm::ProcessGroup*> groups() override {
    return {&mesh_->row_group(), &mesh_->column_group()};
  }
  std::int64_t shared_bytes() const override {
    return mesh_->exchange().shared_bytes();
  }

 private:
  static nn::TransformerOptions layer_options(const Problem& problem) {
    nn::TransformerOptions options;
    options.num_attention_heads = problem.heads;
    options.attention_head_size = problem.hidden / problem.heads;
    options.hidden_size = problem.hidden;
    options.intermediate_size = 4 * problem.hidden;
    options.attention_dropout_prob = 0;
    options.hidden_dropout_prob = 0;
    options.activation = "gelu_tanh";
    options.causal_mask_size = 1 << 20;
    options.pre_layernorm = true;
    options.post_layernorm = false;
    return options;
  }

  summa::MeshPtr mesh_;
  std::unique_ptr<managed::ManagedStack> stem_;
  std::vector<std::int64_t> sizes_;
};

class Megatron final : public Scheme {
 public:
  Megatron(comm::ProcessGroup& group, const Settings& settings, const Problem& problem)
      : group_(group),
        sizes_{problem.batch, settings.sequence, problem.hidden},
        stem_(group, settings.layers, problem.hidden, problem.heads) {}
  const char* name() const override {
    return "Megatron";
  }
  std::vector<std::int64_t> input_sizes() const override {
    return sizes_;
  }
  at::Tensor forward(const at::Tensor& x) override {
    return stem_.forward(x);
  }
  void backward(const at::Tensor& gradient) override {
    stem_.backward(gradient);
  }
  std::vector<comm::ProcessGroup*> groups() override {
    return {&group_};
  }

 private:
  comm::ProcessGroup& group_;
  std::vector<std::int64_t> sizes_;
  MegatronStem stem_;
};

class Experiment {
 public:
  Experiment(comm::World& world, const Settings& settings)
      : world_(world), settings_(settings), memory_(MemoryCount::install()) {
    std::vector<int> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = world.new_group("all", ranks);
    control_ = world.new_group("control", ranks);
    shape_ = topology::mesh_shape(world.size());
  }

  void weak() {
    const std::int64_t hidden = settings_.width * shape_.columns;
    // Table 2: 96 q / 2 for Optimus, 60 60 40 30 for Megatron.
    const std::int64_t optimus = std::int64_t{settings_.batch} * shape_.rows;
    const double share[] = {60, 60, 60, 40, 30};
    const auto megatron = std::max<std::int64_t>(
        1, std::llround(settings_.batch * share[std::min(shape_.columns, 4)] / 48.0));
    both("weak", {optimus, hidden, world_.size()}, {megatron, hidden, world_.size()});
  }

  void strong() {
    // Table 3: Megatron's heads and hidden size must divide by p, and it takes
    // half the batch.
    const std::int64_t hidden = std::int64_t{settings_.width} * 2;
    both("strong", {2 * settings_.batch, hidden, 12}, {settings_.batch, hidden, world_.size()});
  }

  void memory() {
    const std::int64_t hidden = settings_.width * shape_.columns;
    for (const bool two_dimensions : schemes()) {
      const std::int64_t step = two_dimensions ? shape_.rows : 1;
      const auto fits = [&](std::int64_t units) {
        const Problem problem = {units * step, hidden, world_.size()};
        const Cost cost = run(*make(two_dimensions, problem), 1);
        return most(cost.memory) <= static_cast<std::int64_t>(settings_.limit_mib * 1024 * 1024);
      };
      std::int64_t good = 0;
      std::int64_t bad = 1;
      while (bad <= 4096 && fits(bad)) {
        good = bad;
        bad *= 2;
      }
      while (bad - good > 1) {
        const std::int64_t middle = (good + bad) / 2;
        (fits(middle) ? good : bad) = middle;
      }
      print(
          {{"experiment", "memory"},
           {"scheme", two_dimensions ? "Optimus" : "Megatron"},
           {"ranks", world_.size()},
           {"hidden", hidden},
           {"limit_mib", settings_.limit_mib},
           {"largest_batch", good * step},
           {"too_large", bad * step}});
    }
  }

  void savings() {
    const Problem problem = {
        std::int64_t{settings_.batch} * shape_.rows,
        std::int64_t{settings_.width} * shape_.columns,
        world_.size()};
    for (int set = 0; set < 8; ++set) {
      managed::Savings savings;
      savings.reuse_outputs = (set & 1) != 0;
      savings.update_at_once = (set & 2) != 0;
      savings.skip_products = (set & 4) != 0;
      Optimus scheme(world_, *group_, settings_, problem, savings);
      json line = describe("savings", scheme, problem, run(scheme, settings_.rounds));
      line["reuse_outputs"] = savings.reuse_outputs;
      line["update_at_once"] = savings.update_at_once;
      line["skip_products"] = savings.skip_products;
      print(line);
    }
  }

 private:
  std::vector<bool> schemes() const {
    if (settings_.scheme.empty()) {
      return {false, true};
    }
    return {settings_.scheme == "optimus"};
  }

  std::unique_ptr<Scheme> make(bool two_dimensions, const Problem& problem) {
    if (two_dimensions) {
      return std::make_unique<Optimus>(world_, *group_, settings_, problem);
    }
    return std::make_unique<Megatron>(*group_, settings_, problem);
  }

  void both(const char* what, const Problem& optimus, const Problem& megatron) {
    for (const bool two_dimensions : schemes()) {
      const Problem& problem = two_dimensions ? optimus : megatron;
      const auto scheme = make(two_dimensions, problem);
      print(describe(what, *scheme, problem, run(*scheme, settings_.rounds)));
    }
  }

  /// Steps of one scheme; the best times, the traffic of one step, the memory
  /// at most.
  Cost run(Scheme& scheme, int rounds) {
    const at::Tensor x = torch::randn(scheme.input_sizes());
    const at::Tensor gradient = torch::randn(scheme.input_sizes());
    const auto sum = [&](auto member) {
      std::int64_t total = 0;
      for (comm::ProcessGroup* group : scheme.groups()) {
        total += (group->traffic().*member).load();
      }
      return total;
    };
    std::vector<double> forward;
    std::vector<double> backward;
    Cost cost;
    memory_.restart();
    for (int round = rounds > 1 ? -1 : 0; round < rounds; ++round) {
      const auto bytes = sum(&comm::Traffic::bytes);
      const auto calls = sum(&comm::Traffic::calls);
      control_->barrier();
      const double forward_ms = milliseconds_of([&] {
        scheme.forward(x);
        control_->barrier();
      });
      const double backward_ms = milliseconds_of([&] {
        scheme.backward(gradient);
        control_->barrier();
      });
      cost.bytes = sum(&comm::Traffic::bytes) - bytes;
      cost.messages = sum(&comm::Traffic::calls) - calls;
      if (round >= 0) {
        forward.push_back(forward_ms);
        backward.push_back(backward_ms);
      }
    }
    cost.forward_ms = summary_of(forward).best;
    cost.backward_ms = summary_of(backward).best;
    cost.memory = memory_.most() + scheme.shared_bytes();
    return cost;
  }

  std::int64_t most(std::int64_t value) {
    const at::Tensor all = torch::full({1}, value, torch::kLong);
    control_->all_reduce(all, comm::ReduceOp::kMax);
    return all.item<std::int64_t>();
  }

  json describe(const char* what, const Scheme& scheme, const Problem& problem, const Cost& cost) {
    const auto batch = static_cast<double>(problem.batch);
    return {
        {"experiment", what},
        {"scheme", scheme.name()},
        {"ranks", world_.size()},
        {"batch", problem.batch},
        {"hidden", problem.hidden},
        {"heads", problem.heads},
        {"forward_ms", cost.forward_ms},
        {"backward_ms", cost.backward_ms},
        {"throughput", batch / (cost.forward_ms + cost.backward_ms) * 1000},
        {"inference", batch / cost.forward_ms * 1000},
        {"bytes_of_rank", most(cost.bytes)},
        {"messages_of_rank", most(cost.messages)},
        {"memory_of_rank", most(cost.memory)}};
  }

  void print(const json& line) {
    if (world_.rank() != 0) {
      return;
    }
    if (settings_.json) {
      std::printf("%s\n", line.dump().c_str());
    } else {
      for (const auto& [key, value] : line.items()) {
        std::printf("%s %s  ", key.c_str(), value.dump().c_str());
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }

  comm::World& world_;
  Settings settings_;
  MemoryCount& memory_;
  comm::ProcessGroupPtr group_;
  comm::ProcessGroupPtr control_;
  topology::MeshShape shape_;
};

} // namespace

int main(int argc, char** argv) {
  CLI::App app("Transformer layers in two dimensions, beside one");
  Settings settings;
  std::string what;
  app.add_option("experiment", what, "weak, strong, memory or savings")
      ->required()
      ->check(CLI::IsMember({"weak", "strong", "memory", "savings"}));
  const auto number = [&](const char* name, int& value, const char* text) {
    app.add_option(name, value, text)->check(CLI::PositiveNumber);
  };
  number("--layers", settings.layers, "transformer layers");
  number("--sequence", settings.sequence, "positions of a sample");
  number("--width", settings.width, "hidden size of a side of the mesh");
  number("--batch", settings.batch, "samples of a side of the mesh");
  number("--rounds", settings.rounds, "timed steps");
  app.add_option("--limit-mib", settings.limit_mib, "memory of a rank")->check(CLI::PositiveNumber);
  app.add_option("--scheme", settings.scheme, "one of them alone")
      ->check(CLI::IsMember({"megatron", "optimus"}));
  app.add_option(
         "--arrangement",
         settings.arrangement,
         "of the ranks on Optimus's mesh: bunched or row_major")
      ->check(CLI::IsMember({"bunched", "row_major"}));
  app.add_flag("--json", settings.json, "JSON lines");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    const auto world = comm::mpi_world({});
    Experiment experiment(*world, settings);
    if (what == "weak") {
      experiment.weak();
    } else if (what == "strong") {
      experiment.strong();
    } else if (what == "memory") {
      experiment.memory();
    } else {
      experiment.savings();
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
