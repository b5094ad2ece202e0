#pragma once

// This header is private to the simulator: it executes the pipelines of all replicas, and the
// synchronization that follows.

#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/cost/group_place.h"
#include "tessera/simulator/network.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

/// A rate that nothing limits.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

class Pipelines {
 public:
  Pipelines(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const cost::Strategy& strategy,
      const SimulationOptions& options);

  SimulationResult run();

 private:
  using State = schedule::Progress::State;

  // What a stage runs: its layers; on stage 0 also the part of the model behind the last stage; or
  // the forwarding of a tensor between two other stages.
  enum class Part { kLayers, kTail, kRelay };
  struct Task {
    bool forward = true;
    int microbatch = 0;
    Part part = Part::kLayers;
    int target = 0; // for a relay: the stage to which it forwards

    // Orders tasks by preference: backwards first, then low microbatches.
    bool operator<(const Task& other) const {
      return std::tie(forward, microbatch, part) <
             std::tie(other.forward, other.microbatch, other.part);
    }
  };
  // The ranks of a unit on one node.
  struct Share {
    int node = 0;
    int ranks = 0;
    cost::PassSeconds layers = {};
    cost::PassSeconds tail = {};
  };
  // One stage of one replica. Its tensor-parallel ranks run in lockstep: a task has ended when all
  // have.
  struct Unit {
    std::vector<Share> shares;
    // Of the slowest of its ranks.
    cost::PassSeconds layers;
    cost::PassSeconds tail;
    cost::PassSeconds exchange; // among tensor-parallel ranks; not included in `layers`
    cost::PassSeconds tail_exchange;
    double optimizer_seconds = 0;
    std::set<Task> ready;
    bool busy = false;
    int backwards_left = 0;
    int in_flight = 0;
    int most_in_flight = 0;
    /// How many of its stage's buckets have been announced to become full while its last backward
    /// runs.
    int announced = 0;
  };
  // The reduction of a stage's gradients over its replicas: buckets become full one after the
  // other, and travel one after the other.
  struct Reduction {
    double bytes = 0; // of one bucket
    std::vector<int> replicas_left = {}; // of each bucket, until it is full on all of them
    bool released = false; // whether buckets may travel before every stage has ended
    bool busy = false;
    int full = 0;
    int started = 0;
    int left = 0; // buckets whose averages have not arrived
  };
  // A collective of several groups at one time.
  struct Collective {
    std::vector<std::vector<int>> groups; // virtual ranks
    double bytes = 0; // of one rank's input
    double part = 1; // of an all-reduce that is run; 0.5: the way to the owners, or back
    std::string name;
  };
  struct Event {
    double time = 0;
    long order = 0; // of creation, which breaks ties
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  Unit& unit(int stage, int replica) {
    const int index = stage * strategy_.dp + replica;
    return units_[static_cast<std::size_t>(index)];
  }
  // The links of `network_`: out of and into each node, its cores, for each link of
  // cost::NodeLinks its two directions, and what each device sends and receives inside its node.
  static int out_link(int node) {
    return 2 * node;
  }
  static int in_link(int node) {
    return 2 * node + 1;
  }
  int cores_link(int node) const;
  int pair_link(int pair, bool descending) const;
  int device_link(int rank, bool receives) const;
  static void add_share(const Share& share, std::vector<Share>& shares);
  void build_units(const cost::LayerTable& table, const cost::PlacementLinks& links);
  void at_time(double time, std::function<void()> act);
  std::function<void()> take_event();
  /// Starts a flow (Network::start) now; `then` follows when it ends.
  void flow(
      double bytes,
      std::vector<int> links,
      double weight,
      double limit,
      std::function<void()> then);
  void set_state(int replica, int microbatch, State state);
  void ask_schedule(int replica);
  void make_ready(int stage, int replica, const Task& task);
  void try_start(int stage, int replica);
  template <typename Ranks> // Unit or Share
  double seconds_of(const Ranks& ranks, const Task& task) const;
  /// Returns how many times as long as estimated the slowest of `ranks` computes.
  double drawn_factor(int ranks);
  double slowdown(int stage, int replica, int tensor) const;
  /// Runs the computation of a task on all ranks of a unit; `then` follows when all have ended.
  /// Returns the seconds that it takes; 0 where ranks share cores, since nobody knows them yet.
  double compute(const Unit& unit, const Task& task, const std::function<void()>& then);
  static double exchange_seconds_of(const Unit& unit, const Task& task);
  void finish(int stage, int replica, const Task& task, double start);
  void after_forward(int stage, int replica, const Task& task);
  void after_backward(int stage, int replica, const Task& task);
  /// Sends the activation (or its gradient) between stages `cut` - 1 and `cut`; the task is ready
  /// on stage `to` once it has arrived.
  void send(int from, int to, int replica, int cut, const Task& task);
  void plan_reductions();
  /// Announces the buckets that become full while the last backward of a unit runs for so long.
  void announce_buckets(int stage, int replica, double seconds);
  void bucket_is_full(int stage, int bucket);
  void end_of_stage();
  /// Starts the next bucket of a stage that is full, if none travels.
  void reduce_next(int stage);
  void reduce_whole(int stage);
  void reduce_shared();
  /// Runs a collective: `passed` follows when its groups' links are free, `then` when all ranks
  /// have the result.
  void collective(
      const Collective& what,
      const std::function<void()>& passed,
      const std::function<void()>& then);
  /// Runs that of one group, or of `weight` groups that are placed alike.
  void all_reduce(
      const std::vector<int>& ranks,
      int weight,
      const Collective& what,
      const std::function<void()>& passed,
      const std::function<void()>& then);
  double part_beside() const; // of an all-reduce that runs before the optimizer's step
  std::vector<std::vector<int>> replica_groups(int stage) const;
  void step_optimizer();
  void return_parameters(int stage);
  void record(
      int stage,
      int replica,
      const std::string& name,
      const std::string& category,
      int microbatch,
      int lane,
      double start,
      double end,
      double bytes = 0);
  cost::StageState state_of(int stage, int in_flight) const;
  /// Samples between tasks, or while one runs.
  void sample_memory(int stage, int replica, bool runs);
  SimulationResult result();

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const cost::Strategy& strategy_;
  const SimulationOptions& options_;
  cost::LayerTable table_;
  /// Whether there are several stages and the output of the last one returns to stage 0.
  bool returns_home_;
  int microbatches_;
  cost::Places places_;
  std::vector<Unit> units_;
  std::vector<schedule::Progress> progress_; // per replica
  /// Per replica whether its progress has changed since its schedule last had nothing to start: a
  /// schedule says the same to the same progress, and to ask takes a look at every microbatch.
  std::vector<char> progressed_;
  std::vector<std::unique_ptr<schedule::Schedule>> schedules_;
  Network network_;
  std::vector<std::function<void()>> on_flow_end_; // by the network's ids
  std::vector<Event> events_; // a heap, the next one in front
  long created_ = 0;
  double now_ = 0;
  std::vector<int> replicas_left_; // per stage, until its backwards are done
  int stages_left_ = 0;
  std::vector<Reduction> reductions_; // per stage
  int reductions_left_ = 0;
  std::vector<char> host_runs_ahead_; // per stage
  double iteration_ = 0;
  bool stepped_ = false;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double busy_seconds_ = 0;
  double span_seconds_ = 0;
  SimulationResult result_;
};

} // namespace tessera::simulator
