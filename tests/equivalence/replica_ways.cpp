#include "tests/equivalence/replica_ways.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "tessera/data_parallel/comm_hook.h"

namespace tessera::equivalence {

using data_parallel::GradientBucket;
using torch::indexing::None;
using torch::indexing::Slice;

int ReplicaWays::first(int step) const {
  int replica = 0;
  while (is_joined(step, replica)) {
    ++replica;
  }
  return replica;
}

double ReplicaWays::weight(int step, int replica, const std::vector<int>& rows) const {
  if (is_joined(step, replica)) {
    return 0;
  }
  if (!uses_join() || divides_by_all) {
    return 1;
  }
  double all = 0;
  double active = 0;
  for (std::size_t i = 0; i < steps_of_replica.size(); ++i) {
    const double counts = rows.empty() ? 1 : rows.at(i);
    all += counts;
    active += is_joined(step, static_cast<int>(i)) ? 0 : counts;
  }
  return all / active;
}

HookKind random_hook(Random& random, bool alone) {
  const std::vector<HookKind> kinds =
      alone
          ? std::vector<HookKind>{HookKind::kAverage, HookKind::kAverageNow, HookKind::kEverySecond}
          : std::vector<HookKind>{HookKind::kAverage};
  return random.pick(kinds);
}

void draw_join(Random& random, int replicas, int steps, ReplicaWays& ways) {
  for (int i = 0; i < replicas; ++i) {
    ways.steps_of_replica.push_back(random.integer(0, steps));
  }
  ways.steps_of_replica.at(static_cast<std::size_t>(random.integer(0, replicas - 1))) = steps;
  ways.divides_by_all = random.chance(50);
}

Model::CommHook hook_of(HookKind kind) {
  switch (kind) {
    case HookKind::kLibrary:
      return nullptr;
    case HookKind::kAverage:
      return [](GradientBucket& bucket) {
        return bucket.group.scaled_sum_async(bucket.buffer, bucket.scale);
      };
    case HookKind::kAverageNow:
      return [](GradientBucket& bucket) {
        bucket.group.all_reduce(bucket.buffer);
        bucket.buffer.mul_(bucket.scale);
        return comm::WorkPtr();
      };
    case HookKind::kEverySecond:
      return [](GradientBucket& bucket) {
        std::vector<torch::Tensor> kept;
        std::int64_t at = 0;
        for (const std::int64_t elements : bucket.elements) {
          kept.push_back(bucket.buffer.narrow(0, at, elements).index({Slice(None, None, 2)}));
          at += elements;
        }
        const torch::Tensor sent = torch::cat(kept);
        bucket.group.all_reduce(sent);
        sent.mul_(bucket.scale);
        bucket.buffer.zero_();
        at = 0;
        std::int64_t from = 0;
        for (const std::int64_t elements : bucket.elements) {
          const std::int64_t count = (elements + 1) / 2;
          bucket.buffer.narrow(0, at, elements)
              .index_put_({Slice(None, None, 2)}, sent.narrow(0, from, count));
          at += elements;
          from += count;
        }
        return comm::WorkPtr();
      };
  }
  return nullptr;
}

torch::Tensor every_second(const torch::Tensor& average) {
  torch::Tensor flat = average.detach().flatten().clone();
  flat.index_put_({Slice(1, None, 2)}, 0);
  return flat.view(average.sizes());
}

std::string to_text(const ReplicaWays& ways) {
  static constexpr const char* kHooks[] = {
      "", "an average", "an average at once", "every second number"};
  std::ostringstream out;
  if (ways.hook != HookKind::kLibrary) {
    out << "hook: " << kHooks[static_cast<int>(ways.hook)] << '\n';
  }
  if (ways.uses_join()) {
    out << "joined, steps of replicas:";
    for (const int steps : ways.steps_of_replica) {
      out << ' ' << steps;
    }
    out << (ways.divides_by_all ? "" : ", divided by those with data") << '\n';
  }
  return out.str();
}

} // namespace tessera::equivalence
