#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "cli/probe/probe.h"
#include "cli/stopwatch.h"

namespace tessera::cli::probe {

namespace {

struct Grouping {
  int ranks = 0;
  std::vector<int> mine; // empty: this rank is in no group
};

// Neighbours (stride 1), or ranks as far apart as the number of groups.
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

int hosts_of(const comm::World& world, const std::vector<int>& ranks) {
  std::set<std::string> hosts;
  for (const int rank : ranks) {
    hosts.insert(world.hosts()[static_cast<std::size_t>(rank)]);
  }
  return static_cast<int>(hosts.size());
}

double median_seconds(
    comm::ProcessGroup& group,
    const std::function<void()>& run,
    const Effort& effort) {
  const int rounds = effort.quick ? 3 : 7;
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    group.barrier();
    const auto start = Clock::now();
    run();
    if (round >= 0) {
      seconds.push_back(
          std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Each operation on a tensor of `elements` f32 on every rank before it.
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
  result["all_gather"] = [&group, whole, gathered] {
    group.all_gather(gathered, whole);
  };
  result["reduce_scatter"] = [&group, slice, even] {
    group.reduce_scatter(slice, even);
  };
  result["all_to_all"] = [&group, even, even_out] {
    group.all_to_all(even_out, even);
  };
  result["broadcast"] = [&group, other] { group.broadcast(other, 0); };
  return result;
}

} // namespace

std::vector<cost::CollectiveTime> measure_collectives(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort) {
  std::vector<std::int64_t> sizes = {1 << 14, 1 << 18, 1 << 22};
  if (effort.quick) {
    sizes = {1 << 14, 1 << 20};
  }
  const int hosts = hosts_of(world, everyone.ranks());
  // (operation, ranks, hosts, bytes) -> seconds of the slowest group.
  std::map<std::tuple<std::string, int, int, double>, double> slowest;
  std::vector<int> all_sizes;
  for (int ranks = 2; ranks <= world.size(); ++ranks) {
    // Replicas and tensor-parallel groups divide the world.
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
      if (!grouping.mine.empty()) {
        const auto group = world.new_group("probe", grouping.mine);
        for (const std::int64_t size : sizes) {
          for (const auto& [name, run] :
               operations(*group, size, effort.quick)) {
            names.push_back(name);
            mine.push_back(ranks);
            mine.push_back(hosts_of(world, grouping.mine));
            mine.push_back(4.0 * static_cast<double>(size));
            mine.push_back(median_seconds(*group, run, effort));
          }
        }
      }
      std::string text;
      for (const std::string& name : names) {
        text += name + " ";
      }
      everyone.barrier();
      const auto packed = c10::ivalue::Tuple::create(
          {c10::IValue(text),
           c10::IValue(at::tensor(mine, at::kDouble).view({-1, 4}))});
      for (const c10::IValue& value :
           comm::all_gather_object(world, everyone, packed)) {
        const auto& parts = value.toTupleRef().elements();
        const at::Tensor rows = parts[1].toTensor();
        std::string rest = parts[0].toStringRef();
        for (std::int64_t i = 0; i < rows.size(0); ++i) {
          const auto blank = rest.find(' ');
          const std::string name = rest.substr(0, blank);
          rest.erase(0, blank + 1);
          const double* row = rows[i].data_ptr<double>();
          double& seconds = slowest[{
              name,
              static_cast<int>(row[0]),
              static_cast<int>(row[1]),
              row[2]}];
          seconds = std::max(seconds, row[3]);
        }
      }
    }
  }
  std::vector<cost::CollectiveTime> result;
  for (const auto& [key, seconds] : slowest) {
    const auto& [name, ranks, nodes, bytes] = key;
    result.push_back({name, ranks, nodes, bytes, seconds});
  }
  return result;
}

} // namespace tessera::cli::probe
