#pragma once

// This header is private to the simulator: it executes the pipelines of all replicas, and the
// synchronization that follows.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/index.h"
#include "tessera/cost/group_place.h"
#include "tessera/simulator/alike.h"
#include "tessera/simulator/network.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

/// A rate that nothing limits.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();
/// What a second of computation is for the network, whose links of cores carry it: near to what
/// other links carry in a second, since rates are whole numbers of one unit.
inline constexpr double kComputation = 1U << 30U;

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

  // What a device runs: the layers of a stage; on rank 0 also the part of the model behind the last
  // stage; or the forwarding of a tensor between two other ranks.
  enum class Part { kLayers, kTail, kRelay };
  struct Task {
    bool forward = true;
    int microbatch = 0;
    Part part = Part::kLayers;
    int stage = 0; // for a relay: the one to which it forwards

    // Orders tasks by preference: backwards first, then low microbatches.
    bool operator<(const Task& other) const {
      return std::tie(forward, microbatch, part, stage) <
             std::tie(other.forward, other.microbatch, other.part, other.stage);
    }
  };
  // Seconds of a forward and of its backward. When a backward has answered the rank that waits for
  // it, it computes gradients of weights for so many more.
  struct Passes {
    double forward = 0;
    double backward = 0;
    double deferred = 0;
  };
  // The ranks of a unit on one node.
  struct Share {
    int node = 0;
    int ranks = 0;
    Passes layers = {};
    Passes tail = {};
  };
  // A way of a message: consecutive tensor-parallel ranks on the same two nodes send as one flow,
  // but inside a node, where each of them has its own links.
  struct Path {
    std::vector<LinkUse> uses = {};
    double limit = 0; // of one stream
  };
  // What follows an event or the end of a flow, without an allocation for each.
  struct Then {
    enum class Kind { kTaskEnds, kComputed, kStreamEnds, kArrives, kCall };
    Kind kind = Kind::kCall;
    int index = 0; // of a unit, a message or a call
  };
  // One stage of one replica. Its tensor-parallel ranks run in lockstep: a task has ended when all
  // have.
  struct StageRun {
    std::vector<Share> shares;
    bool on_cores = false; // whether some of its nodes have ranks that share cores
    // Of the slowest of its ranks.
    Passes layers;
    Passes tail;
    cost::PassSeconds exchange; // among tensor-parallel ranks; not included in `layers`
    cost::PassSeconds tail_exchange;
    double optimizer_seconds = 0;
    int backwards_left = 0;
    int in_flight = 0;
    /// How many of its buckets have been announced to become full while its last backward runs.
    int announced = 0;
  };
  // The devices of one pipeline rank of one replica, which run one task at a time.
  struct Unit {
    std::vector<Task> ready; // the preferred one last
    bool busy = false;
    Task running;
    bool answered = false; // the running backward, which computes what it deferred
    std::vector<double> factors; // that were drawn for the running task, by share
    double started = 0;
    int parts_left = 0; // of the running task, on nodes whose ranks share cores
    double peak_bytes = 0;
    std::vector<Path> cores; // by share
    std::vector<Path> ways[4]; // by Way
    double latencies[4] = {}; // by Way, of a message
  };
  // Where a unit's messages go: to the next and the previous pipeline rank, to rank 0, and from
  // rank 0 to it.
  enum Way { kNext, kPrevious, kHome, kFromHome };
  struct Message {
    int from = 0; // pipeline ranks
    int to = 0;
    int replica = 0;
    Task task;
    double bytes = 0;
    double start = 0;
    double latency = 0;
    int streams = 0; // that have not ended
  };
  // The buckets that become full in a stage's last backward, and after which share of it each.
  struct StageBuckets {
    std::vector<int> numbers;
    std::vector<double> shares;
  };
  // The reduction of a pipeline rank's gradients over its replicas: buckets become full one after
  // the other, and travel one after the other.
  struct Reduction {
    double bytes = 0; // of one bucket
    std::vector<int> replicas_left = {}; // of each bucket, until it is full on all of them
    bool released = false; // whether buckets may travel before every stage has ended
    bool busy = false;
    int full = 0;
    int started = 0;
    int left = 0; // buckets whose averages have not arrived
  };
  // A collective's flow: groups that are placed alike, and the links of one.
  struct GroupFlow {
    std::vector<std::vector<int>> groups; // virtual ranks
    cost::GroupPlace place;
    Path path;
  };
  // A collective of several groups at one time.
  struct Collective {
    std::vector<GroupFlow> flows;
    double bytes = 0; // of one rank's input
    double part = 1; // of an all-reduce that is run; 0.5: the way to the owners, or back
    std::string name;
  };
  struct Event {
    double time = 0;
    std::int64_t order = 0; // of creation, which breaks ties
    Then then;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  const cost::LayerTable& table_of(int replica) const {
    return tables_.at(strategy_.microbatch_of(replica));
  }
  /// For what does not depend on samples.
  const cost::LayerTable& any_table() const {
    return tables_.begin()->second;
  }
  int rank_of(int stage) const {
    return stage % strategy_.pp;
  }
  StageRun& stage_run(int stage, int replica) {
    return stages_[at(stage * strategy_.dp + replica)];
  }
  const StageRun& stage_run(int stage, int replica) const {
    return stages_[at(stage * strategy_.dp + replica)];
  }
  int unit_of(int rank, int replica) const {
    return rank * strategy_.dp + replica;
  }
  Unit& unit(int rank, int replica) {
    return units_[at(unit_of(rank, replica))];
  }
  int first_layer(int stage) const {
    return strategy_.boundaries[at(stage)];
  }
  int last_layer(int stage) const {
    return strategy_.boundaries[at(stage) + 1];
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
  static Passes slower(const Passes& one, const Passes& other);
  static void add_share(const Share& share, std::vector<Share>& shares);
  void build_stages(const cost::PlacementLinks& links);
  StageRun build_stage(const cost::PlacementLinks& links, int stage, int replica) const;
  void build_paths();
  std::vector<Path> paths(int from, int to, int replica) const;
  double latency(int from, int to, int replica) const;
  std::vector<Way> ways_of(int rank) const;
  ReplicaWork work_of(int replica) const;
  void join_alike(const std::vector<double>& bytes_per_s);
  bool shares_cores(const Share& share) const;
  void at_time(double time, Then then);
  Then call(std::function<void()> function);
  void act(Then then);
  /// Starts a flow (Network::start) now; `then` follows when it ends.
  void flow(double bytes, const std::vector<LinkUse>& links, double limit, Then then);
  void set_state(int replica, int microbatch, State state);
  void ask_schedule(int replica);
  void make_ready(int rank, int replica, const Task& task);
  void try_start(int rank, int replica);
  template <typename Ranks> // StageRun or Share
  double seconds_of(const Ranks& ranks, const Task& task) const;
  template <typename Ranks>
  static double deferred_seconds_of(const Ranks& ranks, const Task& task);
  /// Returns how many times as long as estimated the slowest of `ranks` computes.
  double drawn_factor(int ranks);
  double slowdown(int rank, int replica, int tensor) const;
  /// Runs the computation of a unit's task on all of its ranks. Returns the seconds that it takes;
  /// 0 where ranks share cores, since nobody knows them yet.
  double compute(int rank, int replica);
  /// Runs the computation of a unit's task on the ranks of one share.
  void compute_a_part(
      const Unit& here,
      const Share& share,
      std::size_t index,
      double seconds,
      Then computed);
  /// Computes what the unit's backward deferred, if anything. Returns whether there is something.
  bool compute_deferred(int rank, int replica);
  void computed_a_part(int unit);
  static double exchange_seconds_of(const StageRun& stage, const Task& task);
  void finish(int unit);
  void after_forward(int rank, int replica, const Task& task);
  /// Sends to the stage of `next` what a rank made for it, through rank 0 where it relays and
  /// neither is there.
  void pass_on(int rank, int replica, int cut, Task next);
  /// Sends what a backward made for the stage before.
  void answer(int rank, int replica, const Task& task);
  void after_backward(int rank, int replica, const Task& task);
  void end_backward(int stage, int replica);
  /// Sends the activation (or its gradient) between stages `cut` - 1 and `cut`; the task is ready
  /// on rank `to` once it has arrived.
  void send(int from, int to, int replica, int cut, const Task& task);
  /// Returns the unit that has the paths from one rank to another, and under which name.
  std::pair<const Unit*, Way> way_between(int from, int to, int replica);
  void end_stream(int message);
  void arrive(int message);
  double parameters_of(int rank) const;
  double whole_parameters_of(int rank) const;
  void plan_reductions();
  /// Says in which stages a rank's buckets become full.
  void assign_buckets(int rank);
  /// Announces the buckets that become full while the last backward of a stage runs for so long.
  void announce_buckets(int stage, int replica, double seconds);
  /// Those that were not announced.
  void fill_buckets(int stage, int replica);
  void bucket_is_full(int rank, int replica, int bucket);
  void end_of_stage();
  /// Starts the next bucket of a rank that is full, if none travels.
  void reduce_next(int rank);
  void reduce_whole(int rank);
  void reduce_shared();
  /// Runs a collective: `passed` follows when its groups' links are free, `then` when all ranks
  /// have the result.
  void collective(
      const Collective& what,
      const std::function<void()>& passed,
      const std::function<void()>& then);
  /// Runs that of groups that are placed alike.
  void all_reduce(
      const GroupFlow& groups,
      const Collective& what,
      const std::function<void()>& passed,
      const std::function<void()>& then);
  std::vector<GroupFlow> flows_of(const std::vector<std::vector<int>>& groups) const;
  Path ring_path(const std::vector<int>& ranks, int streams, const cost::GroupPlace& place) const;
  double part_beside() const; // of an all-reduce that runs before the optimizer's step
  std::vector<std::vector<int>> replica_groups(int rank) const;
  void step_optimizer();
  void return_parameters(int rank);
  void record(
      int rank,
      int replica,
      const std::string& name,
      const std::string& category,
      int microbatch,
      int lane,
      double start,
      double end,
      double bytes = 0);
  /// Returns what a stage holds with the microbatches that are in flight now.
  const cost::StageMemory& memory_of(int stage, int replica);
  /// Returns the bytes of a unit that runs `stage`; between tasks for -1.
  double bytes_of(int rank, int replica, int stage);
  /// Samples between tasks, or while a stage runs.
  void sample_memory(int rank, int replica, int stage);
  SimulationResult result();

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const cost::Strategy& strategy_;
  const SimulationOptions& options_;
  std::vector<int> run_rank_; // of events, by virtual rank
  /// By the samples of a microbatch, of which replicas may take unlike numbers.
  std::map<int, cost::LayerTable> tables_;
  /// Whether there are several ranks and the output of the last stage returns to rank 0.
  bool returns_home_;
  /// Whether what other ranks send to each other passes through rank 0.
  bool relays_;
  int microbatches_;
  cost::Places places_;
  std::vector<StageRun> stages_;
  std::vector<Unit> units_;
  std::vector<int> most_in_flight_; // by stage, that it may hold
  /// Replicas that are simulated, and for each replica the one that stands for it.
  std::vector<int> simulated_;
  Alike alike_;
  std::vector<int> stands_for_; // by replica, how many
  std::vector<schedule::Progress> progress_; // per replica
  /// Per replica whether its progress has changed since its schedule last had nothing to start: a
  /// schedule says the same to the same progress, and to ask takes a look at every microbatch.
  std::vector<char> progressed_;
  std::vector<std::unique_ptr<schedule::Schedule>> schedules_;
  Network network_;
  std::vector<Then> on_flow_end_; // by the network's ids
  std::vector<Event> events_; // a heap, the next one in front
  std::int64_t created_ = 0;
  std::vector<Message> messages_;
  std::vector<int> free_messages_;
  std::vector<std::function<void()>> calls_;
  std::vector<int> free_calls_;
  double now_ = 0;
  std::vector<int> replicas_left_; // per stage, until its backwards are done
  int stages_left_ = 0;
  std::vector<Reduction> reductions_; // per pipeline rank
  std::vector<StageBuckets> buckets_of_stage_;
  /// Per pipeline rank the flows of what its replicas reduce, and of what all of its ranks do.
  std::vector<std::vector<GroupFlow>> replica_flows_;
  std::vector<std::vector<GroupFlow>> rank_flows_;
  int reductions_left_ = 0;
  std::vector<cost::HostPace> host_pace_; // per stage
  /// Per samples of a microbatch, stage, and whether a backward has ended there, by microbatches in
  /// flight.
  std::map<std::tuple<int, int, bool>, std::vector<cost::StageMemory>> memory_;
  double iteration_ = 0;
  bool stepped_ = false;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> busy_seconds_; // per replica
  double span_seconds_ = 0;
  SimulationResult result_;
};

} // namespace tessera::simulator
