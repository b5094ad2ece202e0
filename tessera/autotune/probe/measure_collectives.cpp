#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"
#include "tessera/base/statistics.h"
#include "tessera/base/stopwatch.h"

namespace tessera::autotune {

namespace {

struct Grouping {
  int ranks = 0;
  std::vector<int> mine; // empty: this rank is in no group
};

// Returns the group of this rank: neighbours, or with `apart` ranks whose distance is the
// number of groups. If `ranks` does not divide the world there is only one group.
Grouping grouping_of(const comm::World& world, int ranks, bool apart) {
  const int groups = world.size() / ranks;
  const int used = world.size() % ranks == 0 ? groups : 1;
  Grouping result = {ranks, {}};
  const int stride = apart ? groups : 1;
  const int group = apart ? world.rank() % groups : world.rank() / ranks;
  if (group >= used || (apart && world.rank() >= groups * ranks)) {
    return result;
  }
  const int first = apart ? group : group * ranks;
  for (int i = 0; i < ranks; ++i) {
    result.mine.push_back(first + i * stride);
  }
  return result;
}

// Returns the nodes of a group as to_cluster numbers them: hosts in the order of their first ranks.
cost::NodeSet nodes_of(const comm::World& world, const std::vector<int>& ranks) {
  std::map<std::string, int> number;
  for (const std::string& host : world.hosts()) {
    number.emplace(host, static_cast<int>(number.size()));
  }
  std::set<int> nodes;
  for (const int rank : ranks) {
    nodes.insert(number.at(world.hosts()[static_cast<std::size_t>(rank)]));
  }
  return {nodes.begin(), nodes.end()};
}

// What one group measured of one collective at one size.
using Key = std::tuple<std::string, int, cost::NodeSet, double>; // operation, ranks, nodes, bytes

/// Returns the seconds of one run among several in a row, as in training: ranks share
/// cores and links, and a rank that the host does not schedule keeps the others
/// waiting. A single run between barriers would hide that, because its clock starts
/// only when the rank is scheduled. `runs` is equal on all ranks of the group.
double seconds_in_a_row(comm::ProcessGroup& group, const std::function<void()>& run, int runs) {
  group.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < runs; ++i) {
    run();
  }
  return seconds_since(start) / runs;
}

/// Returns the longest of the ranks' seconds, on all ranks.
double longest(comm::ProcessGroup& group, double seconds) {
  const at::Tensor agreed = at::full({1}, seconds, at::kDouble);
  group.all_reduce(agreed, comm::ReduceOp::kMax);
  return agreed.item<double>();
}

/// One collective at one size, and its measured seconds.
struct Timed {
  std::string name;
  double bytes = 0;
  std::function<void()> run;
  int runs = 3; // in a round
  bool slow = false; // so slow that one run is exact enough
  Rounds rounds; // of a slow one alone, of others with the computation before
  /// What runs with computation before each took longer than the computation alone, a round each.
  /// Their middle counts: a rank that waits for its turn on a core is no load of others.
  std::vector<double> behind;
  double seconds = 0;
};

// What ranks compute between two collectives is part of a layer's forward. Without computation,
// groups that share cores contend for them in every step of a collective, which they do not where
// their ranks have work. With much of it, ranks of a group end at different times, which is another
// quantity: waiting_share.
constexpr std::int64_t kFewRows = 8;

/// Returns the seconds of one computation with the collective behind it, the longest of the ranks'.
double seconds_with(
    comm::ProcessGroup& group,
    const std::function<void()>& compute,
    const std::function<void()>& collective,
    int runs) {
  const auto both = [&] {
    compute();
    collective();
  };
  return longest(group, seconds_in_a_row(group, both, runs));
}

/// Returns by what share ranks of this group compute longer where they wait for each other between
/// layers, beyond the seconds of the collective by which they wait. Ranks that share cores do not
/// end together. Collective over the group.
double waiting_share(comm::ProcessGroup& group, const Effort& effort) {
  constexpr int kLayers = 20;
  const std::function<void()> few = training_layers(/*backward=*/false, kFewRows);
  const std::function<void()> many = training_layers(/*backward=*/false);
  const at::Tensor tensor = at::zeros({1 << 14});
  const auto wait = [&] { group.all_reduce(tensor); };
  std::vector<double> shares;
  for (int round = 0; round < 2 * effort.rounds; ++round) {
    const double few_alone_s = longest(group, seconds_in_a_row(group, few, kLayers));
    const double few_s = seconds_with(group, few, wait, kLayers) - few_alone_s;
    const double many_alone_s = longest(group, seconds_in_a_row(group, many, kLayers));
    const double many_s = seconds_with(group, many, wait, kLayers) - many_alone_s;
    if (many_alone_s > few_alone_s) {
      shares.push_back((many_s - few_s) / (many_alone_s - few_alone_s));
    }
  }
  return shares.empty() ? 0 : std::max(0.0, median(shares));
}

/// Measures every collective of a group and sets its `seconds`.
/// Rounds go over all collectives, so that other load meets one round of a
/// collective and not all of them.
void measure_group(comm::ProcessGroup& group, std::vector<Timed>& all, const Effort& effort) {
  // A round is longer than the host's time slices, so that groups meet each other.
  constexpr double kRoundS = 0.03;
  constexpr double kSlowS = 0.3;
  constexpr int kFewest = 3;
  constexpr int kMostRuns = 1000;
  constexpr double kLeastS = 1e-7; // the difference of two measurements may be none
  const std::function<void()> compute = training_layers(/*backward=*/false, kFewRows);
  for (Timed& one : all) {
    seconds_in_a_row(group, one.run, 1); // the first run opens connections and allocates buffers
    const double seconds = longest(group, seconds_in_a_row(group, one.run, 1));
    one.runs = std::clamp(static_cast<int>(kRoundS / seconds), 1, kMostRuns);
    one.slow = seconds > kSlowS;
    if (one.slow) {
      one.rounds.add(seconds);
    }
  }
  seconds_in_a_row(group, compute, kFewest);
  const double once = longest(group, seconds_in_a_row(group, compute, kFewest));
  const int most = std::clamp(static_cast<int>(kRoundS / once), kFewest, kMostRuns);
  for (int round = 0; round < 2 * effort.rounds; ++round) {
    double before = longest(group, seconds_in_a_row(group, compute, most));
    for (Timed& one : all) {
      if (one.slow) {
        continue;
      }
      const double both =
          seconds_with(group, compute, one.run, std::clamp(one.runs, kFewest, most));
      // The speed of the machine drifts, so what stands on both sides is compared with.
      const double after = longest(group, seconds_in_a_row(group, compute, most));
      one.rounds.add(both);
      one.behind.push_back(both - (before + after) / 2);
      before = after;
    }
  }
  for (Timed& one : all) {
    one.seconds = one.slow ? one.rounds.best() : std::max(kLeastS, median(one.behind));
  }
}

// Returns the operations to measure, each with an f32 input of `elements` on every rank.
std::map<std::string, std::function<void()>>
operations(comm::ProcessGroup& group, std::int64_t elements, bool quick) {
  const std::int64_t n = group.size();
  const at::Tensor whole = at::zeros({elements});
  std::map<std::string, std::function<void()>> result;
  result["all_reduce"] = [&group, whole] { group.all_reduce(whole); };
  if (quick) {
    return result;
  }
  const at::Tensor other = at::zeros({elements});
  const at::Tensor slice = at::zeros({elements / n});
  const at::Tensor gathered = at::zeros({elements * n});
  const at::Tensor even = at::zeros({elements / n * n});
  const at::Tensor even_out = at::zeros({elements / n * n});
  result["all_gather"] = [&group, whole, gathered] { group.all_gather(gathered, whole); };
  result["reduce_scatter"] = [&group, slice, even] { group.reduce_scatter(slice, even); };
  result["all_to_all"] = [&group, even, even_out] { group.all_to_all(even_out, even); };
  result["broadcast"] = [&group, other] { group.broadcast(other, 0); };
  return result;
}

} // namespace

std::vector<cost::CollectiveTime> measure_collectives(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality,
    std::vector<cost::GroupWaiting>& waiting) {
  std::vector<std::int64_t> sizes = {1 << 11, 1 << 14, 1 << 18, 1 << 22};
  if (effort.quick) {
    sizes = {1 << 14, 1 << 20};
  }
  const std::size_t hosts = nodes_of(world, everyone.ranks()).size();
  std::map<Key, double> slowest; // seconds of the slowest group
  std::vector<int> all_sizes;
  for (int ranks = 2; ranks <= world.size(); ++ranks) {
    // Replicas and tensor-parallel groups divide the world; a quick probe measures only these.
    if (world.size() % ranks == 0 || !effort.quick) {
      all_sizes.push_back(ranks);
    }
  }
  for (const int ranks : all_sizes) {
    for (const bool apart : {false, true}) {
      if (apart && (hosts == 1 || ranks == world.size())) {
        continue;
      }
      const Grouping grouping = grouping_of(world, ranks, apart);
      std::vector<double> mine;
      std::vector<std::string> names;
      double share = 0;
      if (!grouping.mine.empty()) {
        const auto group = world.new_group("probe", grouping.mine);
        std::vector<Timed> all;
        for (const std::int64_t size : sizes) {
          for (const auto& [name, run] : operations(*group, size, effort.quick)) {
            Timed one;
            one.name = name;
            one.bytes = 4.0 * static_cast<double>(size);
            one.run = run;
            all.push_back(std::move(one));
          }
        }
        measure_group(*group, all, effort);
        share = waiting_share(*group, effort);
        for (const Timed& one : all) {
          names.push_back(one.name);
          mine.push_back(one.bytes);
          mine.push_back(one.seconds);
          if (!one.slow) {
            quality.collective_spread = std::max(quality.collective_spread, one.rounds.spread());
          }
        }
      }
      if (!apart) {
        waiting.push_back({ranks, longest(everyone, share)});
      }
      std::string text;
      for (const std::string& name : names) {
        text += name + " ";
      }
      everyone.barrier();
      const cost::NodeSet nodes = nodes_of(world, grouping.mine);
      const auto packed = c10::ivalue::Tuple::create(
          {c10::IValue(text),
           c10::IValue(at::tensor(nodes, at::kInt)),
           c10::IValue(at::tensor(mine, at::kDouble).view({-1, 2}))});
      for (const c10::IValue& value : comm::all_gather_object(world, everyone, packed)) {
        const auto& parts = value.toTupleRef().elements();
        const at::Tensor numbers = parts[1].toTensor();
        const int* first = numbers.data_ptr<int>();
        const cost::NodeSet among(first, first + numbers.numel());
        const at::Tensor rows = parts[2].toTensor();
        std::string rest = parts[0].toStringRef();
        for (std::int64_t i = 0; i < rows.size(0); ++i) {
          const auto blank = rest.find(' ');
          const std::string name = rest.substr(0, blank);
          rest.erase(0, blank + 1);
          const double* row = rows[i].data_ptr<double>();
          double& seconds = slowest[{name, ranks, among, row[0]}];
          seconds = std::max(seconds, row[1]);
        }
      }
    }
  }
  quality.collective_spread = longest(everyone, quality.collective_spread);
  std::vector<cost::CollectiveTime> result;
  for (const auto& [key, seconds] : slowest) {
    const auto& [name, ranks, among, bytes] = key;
    result.push_back({name, ranks, static_cast<int>(among.size()), bytes, seconds, among});
  }
  return result;
}

} // namespace tessera::autotune
