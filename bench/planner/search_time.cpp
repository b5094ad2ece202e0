// How long searches take, and how that grows: with devices, layers and batch.
// usage: planner_search_time [--large]
// Seconds are processor time of this thread, so that other programs on the
// machine do not count; the best of three.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/layer_assignment.h"
#include "tessera/planner/search.h"
#include "tessera/simulator/simulate.h"

namespace {

using namespace tessera;

// Nodes of eight, three kinds of device in turn.
cost::Cluster cluster_of(int devices, int kinds) {
  cost::Cluster cluster;
  cluster.name = std::to_string(devices) + " devices";
  const char* names[] = {"v100", "a100", "t4"};
  const double memory[] = {32e9, 80e9, 16e9};
  for (int k = 0; k < kinds; ++k) {
    cluster.kinds.push_back(
        {.name = names[k], .memory_bytes = memory[k], .memory_bytes_per_s = 9e11});
  }
  const int in_node = std::min(devices, 8);
  for (int n = 0; n < devices / in_node; ++n) {
    cluster.nodes.push_back(
        {.kind = n % kinds,
         .count = in_node,
         .intra_bytes_per_s = 2e10,
         .inter_bytes_per_s = 1.25e9});
  }
  return cluster;
}

// Layers of uneven cost.
cost::DescribedModel model_of(int layers, int batch) {
  cost::DescribedModel model;
  model.name = std::to_string(layers) + " layers";
  model.global_batch_size = batch;
  model.measured().sequence_length = 1024;
  model.measured().num_attention_heads = 16;
  model.activation_checkpointing = true;
  for (int i = 0; i < layers; ++i) {
    cost::Layer layer;
    cost::MeasuredLayer times;
    layer.name = "layer." + std::to_string(i);
    layer.kind = "transformer_layer";
    layer.parameters = 12'000'000;
    layer.output_elements_per_sample = 1 << 20;
    const double seconds = 4e-3 * (1 + 0.3 * (i % 7));
    for (const char* device : {"v100", "a100", "t4"}) {
      for (const int degree : {1, 2, 4, 8}) {
        times.forward_seconds_per_sample[device][degree] = seconds * (device[0] == 't' ? 2 : 1);
      }
    }
    model.layers.push_back(layer);
    model.measured().layers.push_back(times);
  }
  return model;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void measure(int devices, int kinds, int layers, int batch, planner::Method method) {
  const auto cluster = cluster_of(devices, kinds);
  const auto model = model_of(layers, batch);
  planner::SearchOptions options;
  options.method = method;
  double best = 1e9;
  int considered = 0;
  for (int round = 0; round < 3; ++round) {
    const double start = processor_seconds();
    considered = planner::search(model, cluster, options).considered;
    best = std::min(best, processor_seconds() - start);
  }
  std::printf(
      "%8d  %5d  %6d  %6d  %-10s  %12d  %9.3f\n",
      devices,
      kinds,
      layers,
      batch,
      method == planner::Method::kAmp ? "amp" : "annealing",
      considered,
      best);
}

// The layer assignment alone: uneven layers on stages of three kinds of device,
// with transfers.
void measure_assignment(int layers, int stages) {
  planner::AssignmentProblem problem;
  problem.layers = layers;
  problem.stages = stages;
  problem.microbatches = 64;
  for (int k = 0; k < stages; ++k) {
    std::vector<double> seconds = {0};
    std::vector<double> sends = {0};
    for (int i = 0; i < layers; ++i) {
      seconds.push_back(seconds.back() + 1e-3 * (1 + 0.3 * (i % 7)) * (1 + 0.5 * (k % 3)));
      sends.push_back(1e-4 * (1 + i % 5));
    }
    problem.seconds.push_back(std::move(seconds));
    if (k + 1 < stages) {
      problem.send_seconds.push_back(std::move(sends));
    }
  }
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const double start = processor_seconds();
    planner::assign_layers(problem);
    best = std::min(best, processor_seconds() - start);
  }
  std::printf("%8d  %6d  %9.4f\n", layers, stages, best);
}

// Plans and simulates 200 layers on 10,000 devices. All degrees divide the batch, so that all
// combinations are searched.
void measure_large(int kinds, std::int64_t parameters) {
  const auto cluster = cluster_of(10'000, kinds);
  auto model = model_of(200, 20'000);
  for (cost::Layer& layer : model.layers) {
    layer.parameters = parameters;
  }
  double start = processor_seconds();
  const planner::SearchResult found = planner::search(model, cluster, {});
  const double planned = processor_seconds() - start;
  const cost::Strategy& best = found.best.front().strategy;
  start = processor_seconds();
  simulator::simulate(model, cluster, best, {.keep_events = false});
  const double simulated = processor_seconds() - start;
  std::printf(
      "%8d  %5d  %6d  %11.3f  %12d  %12.3f  %14.3f  pp %d, dp %d, tp %d, mbs %d, %s\n",
      cluster.device_count(),
      kinds,
      static_cast<int>(model.layers.size()),
      static_cast<double>(parameters) / 1e9,
      found.considered,
      planned,
      simulated,
      best.pp,
      best.dp,
      best.tp,
      best.microbatch_size,
      best.placement.c_str());
  std::fflush(stdout);
}

// Simulates 200 stages of 50 replicas with 400 microbatches: nodes of eight hold parts of two
// stages under PDT, and neighbouring stages under DPT. `once`: replicas that are alike once.
void measure_simulation(const std::string& letters, bool overlaps, bool once) {
  const auto cluster = cluster_of(10'000, 1);
  const auto model = model_of(200, 20'000);
  cost::Strategy strategy;
  strategy.pp = 200;
  strategy.dp = 50;
  for (int k = 0; k <= strategy.pp; ++k) {
    strategy.boundaries.push_back(k);
  }
  std::vector<int> devices(static_cast<std::size_t>(strategy.devices()));
  std::iota(devices.begin(), devices.end(), 0);
  strategy.placement = letters;
  strategy.device_of_rank = cost::lay_out(strategy, letters, devices);
  strategy.overlap_gradients = overlaps;
  const double start = processor_seconds();
  const auto result =
      simulator::simulate(model, cluster, strategy, {.keep_events = false, .alike_once = once});
  std::printf(
      "%9s  %8s  %8d  %10.2f  %11.2f  %12.3f  %9.6f\n",
      letters.c_str(),
      overlaps ? "yes" : "no",
      result.simulated_replicas,
      static_cast<double>(result.tasks) / 1e6,
      static_cast<double>(result.computed_rates) / 1e6,
      processor_seconds() - start,
      result.iteration_seconds);
  std::fflush(stdout);
}

int measure_large() {
  std::printf(
      " devices  kinds  layers  1e9 a layer  combinations  planned in s  simulated in s  "
      "strategy\n");
  measure_large(1, 12'000'000);
  measure_large(2, 12'000'000);
  measure_large(2, 1'800'000'000); // which need tensor parallelism and few microbatches in flight
  measure_large(2, 500'000'000);
  std::printf(
      "\nplacement  overlaps  replicas   1e6 tasks    1e6 rates  simulated in s  step in s\n");
  for (const bool overlaps : {false, true}) {
    for (const char* letters : {"PDT", "DPT"}) {
      measure_simulation(letters, overlaps, true);
    }
  }
  measure_simulation("PDT", false, false);
  return 0;
}

} // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::string(arguments[1]) == "--large") {
    return measure_large();
  }
  std::printf(
      " devices  kinds  layers   batch  method        combinations    "
      "seconds\n");
  for (const auto method : {planner::Method::kAmp, planner::Method::kAnnealing}) {
    measure(16, 1, 30, 32, method); // the paper's clusters
    measure(16, 2, 30, 32, method);
  }
  for (const int devices : {4, 64, 256, 1024}) {
    measure(devices, 3, 96, 1024, planner::Method::kAmp);
  }
  for (const int layers : {12, 24, 48, 192}) {
    measure(64, 3, layers, 1024, planner::Method::kAmp);
  }
  for (const int batch : {64, 256, 4096}) {
    measure(64, 3, 96, batch, planner::Method::kAmp);
  }
  std::printf("\n  layers  stages  seconds of the layer assignment\n");
  measure_assignment(24, 8);
  measure_assignment(100, 64);
  measure_assignment(400, 64);
  return 0;
}
