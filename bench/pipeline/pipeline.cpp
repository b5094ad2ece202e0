// A GPT of about 10 M parameters on two pipeline ranks, against the ideal:
//
//   mpirun -n 2 bench_pipeline [--dtype bf16] [--mode fast] [--json]
//
// ideal = largest stage's compute x (microbatches + stages - 1) / microbatches.
// The largest stage is rank 0's: embeddings, half of the blocks, final norm,
// output layer and loss, which is a GPT of half the depth; rank 0 runs it alone
// on one thread while rank 1 sleeps. Rank 0 then runs it while rank 1 runs the
// same, which shows what two busy cores cost each other. Optimizers are not
// timed. All three alternate, step by step.
#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tessera/tessera.h"

#include "bench/support/measure.h"
#include "bench/support/mode.h"
#include "models/gpt.h"

namespace {

using tessera::bench::milliseconds_of;
using tessera::bench::Summary;
using tessera::bench::summary_of;
using tessera::models::Gpt;

constexpr int kStages = 2;

struct Settings {
  std::string dtype = "f32";
  std::string schedule = "interleaved";
  int microbatches = 8;
  int rows = 2; // of a microbatch
  int tokens = 128; // of a row
  int layers = 8;
  int steps = 7;
  std::string mode = "dynamic";
  bool reproducible = false;
  bool json = false;
};

tessera::models::GptOptions options_of(const Settings& settings, int layers) {
  tessera::models::GptOptions options;
  options.vocab_size = 256;
  options.n_positions = settings.tokens;
  options.n_embd = 320;
  options.n_layer = layers;
  options.n_head = 5;
  options.dropout = 0;
  return options;
}

Gpt make_gpt(const Settings& settings, int layers) {
  torch::manual_seed(5);
  Gpt net(options_of(settings, layers));
  if (settings.dtype == "bf16") {
    net->to(torch::kBFloat16);
  }
  return net;
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1).to(torch::kFloat), targets.flatten());
}

struct Times {
  std::vector<double> stage;
  std::vector<double> together;
  std::vector<double> step;
  std::int64_t parameters = 0;
  tessera::bench::Traffic traffic; // of the last step
};

Times measure(const Settings& settings) {
  Times times;
  Gpt whole = make_gpt(settings, settings.layers);
  for (const auto& parameter : whole->parameters()) {
    times.parameters += parameter.numel();
  }
  times.parameters -= 256 * 320; // the output layer's weight is the embedding's
  tessera::DistributedModel model(whole);
  Gpt stage = make_gpt(settings, settings.layers / kStages);
  auto train_step = tessera::step([&](at::Tensor ids, at::Tensor targets) {
    auto loss = loss_of(model(ids), targets);
    model.backward(loss);
    return loss;
  });
  const int rows = settings.rows * settings.microbatches;
  const auto text = torch::randint(0, 256, {rows, settings.tokens + 1});
  const auto ids = text.narrow(1, 0, settings.tokens).contiguous();
  const auto targets = text.narrow(1, 1, settings.tokens).contiguous();

  const auto stage_step = [&] {
    for (int i = 0; i < settings.microbatches; ++i) {
      const auto from = i * settings.rows;
      const auto loss = loss_of(
          stage(ids.narrow(0, from, settings.rows)), targets.narrow(0, from, settings.rows));
      (loss / settings.microbatches).backward();
    }
  };
  const auto timed = [&](std::vector<double>& list, int round, const std::function<void()>& run) {
    for (const auto& net : {whole, stage}) {
      for (auto& parameter : net->parameters()) {
        parameter.mutable_grad() = at::Tensor();
      }
    }
    tessera::barrier();
    const double time = milliseconds_of([&] {
      run();
      tessera::barrier();
    });
    if (round >= 0) {
      list.push_back(time);
    }
  };
  const int warm_up = tessera::bench::warm_up_of(tessera::config_in_force());
  for (int round = -warm_up; round < settings.steps; ++round) {
    timed(times.stage, round, [&] {
      if (tessera::rank() == 0) {
        stage_step();
      }
    });
    timed(times.together, round, stage_step);
    const auto before = tessera::bench::traffic();
    timed(times.step, round, [&] { train_step(ids, targets); });
    times.traffic = tessera::bench::traffic() - before;
  }
  return times;
}

nlohmann::json to_json(const Summary& summary) {
  return {{"best_ms", summary.best}, {"median_ms", summary.median}};
}

void report(const Settings& settings, const Times& times) {
  const Summary stage = summary_of(times.stage);
  const Summary together = summary_of(times.together);
  const Summary step = summary_of(times.step);
  const double bubble =
      static_cast<double>(settings.microbatches + kStages - 1) / settings.microbatches;
  const double ideal = stage.best * bubble;
  const double over = step.best / ideal;
  const double over_together = step.best / (together.best * bubble);
  if (settings.json) {
    const nlohmann::json document = {
        {"benchmark", "pipeline"},
        {"dtype", settings.dtype},
        {"schedule", settings.schedule},
        {"mode", settings.mode},
        {"reproducible", settings.reproducible},
        {"messages", times.traffic.messages},
        {"bytes", times.traffic.bytes},
        {"context_switches", times.traffic.switches},
        {"parameters", times.parameters},
        {"microbatches", settings.microbatches},
        {"stage", to_json(stage)},
        {"stage_all_ranks", to_json(together)},
        {"step", to_json(step)},
        {"ideal_ms", ideal},
        {"over_ideal", over},
        {"over_ideal_all_ranks", over_together}};
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  const auto line = [](const char* name, const Summary& summary) {
    std::printf("%-34s %9.1f %9.1f\n", name, summary.best, summary.median);
  };
  std::printf(
      "GPT of %.1f M parameters, %s, %s, %s, %d microbatches of %d x %d "
      "tokens\n"
      "%-34s %9s %9s\n",
      static_cast<double>(times.parameters) / 1e6,
      settings.dtype.c_str(),
      settings.schedule.c_str(),
      settings.mode.c_str(),
      settings.microbatches,
      settings.rows,
      settings.tokens,
      "milliseconds",
      "best",
      "median");
  line("largest stage, alone", stage);
  line("largest stage, on both ranks", together);
  line("step", step);
  std::printf("ideal %.1f ms; step / ideal %.3f\n", ideal, over);
  std::printf("step / ideal of the stages run together %.3f\n", over_together);
  std::printf(
      "a step: %lld messages, %.2f MB, %lld context switches\n",
      static_cast<long long>(times.traffic.messages),
      static_cast<double>(times.traffic.bytes) / 1e6,
      static_cast<long long>(times.traffic.switches));
}

tessera::Config config_of(const Settings& settings) {
  tessera::Config config;
  config.pipeline_parallel_degree = kStages;
  config.microbatches = settings.microbatches;
  config.pipeline = settings.schedule;
  tessera::bench::set_mode(config, settings.mode);
  config.reproducible = settings.reproducible;
  config.auto_partition = false;
  config.default_partition = 0;
  for (int i = settings.layers / kStages; i < settings.layers; ++i) {
    config.partition[tessera::str("transformer.h.", i)] = 1;
  }
  return config;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app("A GPT on two pipeline ranks, against the ideal");
  Settings settings;
  app.add_option("--dtype", settings.dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--schedule", settings.schedule, "simple or interleaved");
  app.add_option("--mode", settings.mode, "dynamic, static or fast")
      ->check(CLI::IsMember({"dynamic", "static", "fast"}));
  app.add_option("--microbatches", settings.microbatches, "of a step")->check(CLI::PositiveNumber);
  app.add_option("--rows", settings.rows, "of a microbatch")->check(CLI::PositiveNumber);
  app.add_option("--tokens", settings.tokens, "of a row")->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "timed rounds")->check(CLI::PositiveNumber);
  app.add_flag("--reproducible", settings.reproducible, "sums in one order");
  app.add_flag("--json", settings.json, "one JSON line in place of the table");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    tessera::init(config_of(settings));
    const Times times = measure(settings);
    if (tessera::rank() == 0) {
      report(settings, times);
    }
    tessera::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
