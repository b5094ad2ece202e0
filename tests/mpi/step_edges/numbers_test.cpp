// Numbers that a forward changes through its parameters reach its caller, from other ranks too.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

/// What a call notes down, without a tensor.
struct Tally {
  std::int64_t calls = 0;
  double scale = 1;
  std::string last = {};
};

/// Changes a number of each kind in its caller's variables.
struct NotingImpl : torch::nn::Module {
  explicit NotingImpl(std::string name) : own(std::move(name)) {
    block = register_module("block", Block());
  }
  torch::Tensor forward(
      const torch::Tensor& x,
      std::int64_t& depth,
      double& scale,
      bool& seen,
      Tally& tally,
      std::optional<double>& best) {
    ++depth;
    scale *= 0.5;
    seen = !seen;
    tally = {tally.calls + depth, tally.scale * 3, tally.last + own};
    best = best.value_or(1) + 0.25;
    return block(x) * scale;
  }
  std::string own;
  Block block{nullptr};
};
TESSERA_MODULE(Noting);

/// The same through an overloaded forward, whose parameters only the call tells.
struct OverloadedImpl : torch::nn::Module {
  OverloadedImpl() {
    block = register_module("block", Block());
  }
  torch::Tensor forward(const torch::Tensor& x, std::int64_t& depth) {
    depth += 10;
    return block(x);
  }
  torch::Tensor forward(const torch::Tensor& x, double& scale) {
    scale *= 2;
    return block(x);
  }
  Block block{nullptr};
};
TESSERA_MODULE(Overloaded);

struct NotedImpl : torch::nn::Module {
  NotedImpl() {
    first = register_module("first", Noting("f"));
    second = register_module("second", Noting("s"));
    last = register_module("last", Overloaded());
  }
  /// [B, W] -> [B, W + 6]: the last columns are the numbers.
  torch::Tensor forward(const torch::Tensor& x, std::int64_t& depth) {
    double scale = 1;
    bool seen = false;
    Tally tally;
    std::optional<double> best;
    torch::Tensor out = first(x, depth, scale, seen, tally, best);
    out = second->forward(out, depth, scale, seen, tally, best);
    out = last(last(out, depth), scale);
    const std::vector<double> noted = {
        static_cast<double>(depth),
        scale,
        seen ? 1.0 : 0.0,
        static_cast<double>(tally.calls),
        tally.scale + static_cast<double>(tally.last.size()),
        best.value_or(-1)};
    return torch::cat({out, torch::tensor(noted).to(out).expand({x.size(0), 6})}, 1);
  }
  Noting first{nullptr}, second{nullptr};
  Overloaded last{nullptr};
};
TESSERA_MODULE(Noted);

struct Way {
  int pp = 1;
  bool recomputed = false;
  std::string mode = {}; // "static", "fast", "bf16"

  std::string text() const {
    return str(text_of(pp, 2), recomputed ? ", recomputed " : " ", mode);
  }
};

void expect_numbers(const Way& way) {
  SCOPED_TRACE(way.text());
  Config config = placed(way.pp, 2, {{"first", 0}, {"second", way.pp - 1}, {"last", way.pp / 2}});
  config.static_mode = way.mode == "static" || way.mode == "fast";
  config.fast_mode = way.mode == "fast";
  config.static_mode_steps = config.static_mode ? 1 : 5;
  config.bf16 = way.mode == "bf16";
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  Noted net;
  if (way.recomputed) {
    set_activation_checkpointing(net->first);
    set_activation_checkpointing(net->second);
  }
  DistributedModel model{net};
  std::vector<std::int64_t> depths;
  auto train = tessera::step([&](const torch::Tensor& x) {
    std::int64_t depth = 5;
    const torch::Tensor out = model(x, depth);
    model.backward(out.narrow(1, 0, kWidth).square().mean());
    if (!is_tracing()) {
      depths.push_back(depth);
    }
    return out.narrow(1, kWidth, 6).select(0, 0).to(torch::kFloat).detach();
  });
  // depth 5 + 1 + 1 + 10; scale 1 / 2 / 2 * 2; two turns; 0 + 6 + 7; 9 and "fs"; 1 + 2 / 4.
  const auto wanted = torch::tensor({17.F, 0.5F, 0.F, 13.F, 11.F, 1.5F});
  for (int step = 0; step < (config.static_mode ? 4 : 2); ++step) {
    const auto noted = train(torch::ones({4, kWidth}));
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(noted[i].equal(wanted)) << noted[i];
    }
  }
  for (const std::int64_t depth : depths) {
    EXPECT_EQ(depth, 17);
  }
  EXPECT_EQ(depths.empty(), pp_rank() > 0);
}

TEST(NumbersOfArguments, ReachTheCaller) {
  for (const int pp : pipelines()) {
    for (const bool recomputed : {false, true}) {
      expect_numbers({pp, recomputed, ""});
    }
    expect_numbers({pp, false, "bf16"});
  }
}

TEST(NumbersOfArguments, ReachTheCallerInStepsThatAreRepeated) {
  for (const int pp : pipelines()) {
    if (pp > 1) {
      expect_numbers({pp, false, "static"});
      expect_numbers({pp, true, "fast"});
    }
  }
}

} // namespace
} // namespace tessera::testing
