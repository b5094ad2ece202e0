#include "tessera/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "tessera/base/index.h"

namespace tessera::simulator {

namespace {

// Rates that differ by less are equal but for rounding.
constexpr double kSame = 1e-13;
constexpr double kAlmost = 1 - 1e-12;

} // namespace

Network::Network(std::vector<double> bytes_per_s)
    : bytes_per_s_(std::move(bytes_per_s)),
      flows_on_(bytes_per_s_.size()),
      left_on_(bytes_per_s_.size(), 0),
      weight_on_(bytes_per_s_.size(), 0),
      seen_link_(bytes_per_s_.size(), 0),
      load_(bytes_per_s_.size()) {}

int Network::start(double now, double bytes, std::vector<int> links, double weight, double limit) {
  touch(now, links);
  int id = static_cast<int>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
    place_.push_back(-1);
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[at(id)];
  flow = {
      .left = bytes,
      .rate = 0,
      .updated = now,
      .weight = weight,
      .limit = limit,
      .links = std::move(links),
      .order = started_++};
  for (const int link : flow.links) {
    flows_on_[at(link)].push_back(id);
  }
  if (flow.links.empty()) {
    flow.rate = limit;
    set_end(id, now);
  }
  return id;
}

// Notes links whose flows change now. Rates follow once for all changes of one time.
void Network::touch(double now, const std::vector<int>& links) {
  if (now != touched_at_) {
    set_rates();
    touched_at_ = now;
  }
  touched_.insert(touched_.end(), links.begin(), links.end());
}

void Network::sort(std::vector<int>& flows) const {
  std::sort(flows.begin(), flows.end(), [this](int a, int b) {
    return flows_[at(a)].order < flows_[at(b)].order;
  });
}

// Returns the flows on the touched links.
std::vector<int> Network::on_touched() {
  std::vector<int> flows;
  for (const int link : touched_) {
    for (const int id : flows_on_[at(link)]) {
      if (place_[at(id)] < 0) {
        place_[at(id)] = 0;
        flows.push_back(id);
      }
    }
  }
  for (const int id : flows) {
    place_[at(id)] = -1;
  }
  sort(flows);
  return flows;
}

// Returns `flows` and those that share links with them, directly or over others.
std::vector<int> Network::connected(std::vector<int> flows) {
  std::vector<int> links;
  for (const int id : flows) {
    place_[at(id)] = 0;
  }
  for (std::size_t i = 0; i < flows.size(); ++i) {
    for (const int link : flows_[at(flows[i])].links) {
      if (seen_link_[at(link)] == 0) {
        seen_link_[at(link)] = 1;
        links.push_back(link);
        for (const int id : flows_on_[at(link)]) {
          if (place_[at(id)] < 0) {
            place_[at(id)] = 0;
            flows.push_back(id);
          }
        }
      }
    }
  }
  for (const int link : links) {
    seen_link_[at(link)] = 0;
  }
  for (const int id : flows) {
    place_[at(id)] = -1;
  }
  sort(flows);
  return flows;
}

// Returns the max-min fair rates of flows beside all others, which keep theirs: all rise together,
// until a link is full or a flow has reached its limit; its flows keep that rate, the others rise
// on. A link that carries what all its flows could take at their limits holds up none of them.
std::vector<double> Network::fair_rates(const std::vector<int>& flows) {
  computed_ += static_cast<std::int64_t>(flows.size());
  std::vector<double> rates(flows.size(), -1);
  for (std::size_t i = 0; i < flows.size(); ++i) {
    place_[at(flows[i])] = static_cast<int>(i);
  }
  // The next link to be full and the next limit; a link's share only rises, so old entries are low.
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> full;
  std::vector<Entry> limits; // each with a flow's place in `flows`, so that ids order nothing
  std::vector<int> links; // that may bind
  std::vector<int> seen;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Flow& flow = flows_[at(flows[i])];
    limits.emplace_back(flow.limit, static_cast<int>(i));
    for (const int link : flow.links) {
      if (std::exchange(seen_link_[at(link)], 1) != 0) {
        continue;
      }
      seen.push_back(link);
      double most = 0;
      double others = 0;
      double weight = 0;
      for (const int other : flows_on_[at(link)]) {
        const Flow& one = flows_[at(other)];
        most += one.weight * one.limit;
        (place_[at(other)] < 0 ? others : weight) +=
            place_[at(other)] < 0 ? one.weight * one.rate : one.weight;
      }
      if (most > bytes_per_s_[at(link)]) {
        links.push_back(link);
        left_on_[at(link)] = std::max(0.0, bytes_per_s_[at(link)] - others);
        weight_on_[at(link)] = weight;
      }
    }
  }
  std::sort(limits.begin(), limits.end());
  const auto share = [&](int link) { return left_on_[at(link)] / weight_on_[at(link)]; };
  for (const int link : links) {
    full.emplace(share(link), link);
  }
  const auto fix = [&](int id, double rate) {
    double& own = rates[at(place_[at(id)])];
    if (own >= 0) {
      return;
    }
    own = rate;
    const Flow& flow = flows_[at(id)];
    for (const int link : flow.links) {
      if (weight_on_[at(link)] > 0) {
        left_on_[at(link)] = std::max(0.0, left_on_[at(link)] - rate * flow.weight);
        weight_on_[at(link)] -= flow.weight;
      }
    }
  };
  std::size_t next_limit = 0;
  while (!full.empty()) {
    const auto [level, link] = full.top();
    if (weight_on_[at(link)] <= 0) { // all of its flows have their rates
      full.pop();
    } else if (share(link) > level) {
      full.pop();
      full.emplace(share(link), link);
    } else if (next_limit < limits.size() && limits[next_limit].first <= level) {
      fix(flows[at(limits[next_limit].second)], limits[next_limit].first);
      ++next_limit;
    } else {
      full.pop();
      for (const int id : flows_on_[at(link)]) {
        if (place_[at(id)] >= 0) {
          fix(id, level);
        }
      }
    }
  }
  for (const int link : links) {
    weight_on_[at(link)] = 0;
  }
  for (const int link : seen) {
    seen_link_[at(link)] = 0;
  }
  for (std::size_t i = 0; i < flows.size(); ++i) {
    place_[at(flows[i])] = -1;
    const Flow& flow = flows_[at(flows[i])];
    if (rates[i] < 0) { // no link binds it
      rates[i] = flow.limit;
    }
    if (std::abs(rates[i] - flow.rate) <= kSame * flow.rate) {
      rates[i] = flow.rate; // sums of the others' rates round
    }
  }
  return rates;
}

// Returns the flows beside `flows`, which would have these rates, that must be computed with them:
// those whose own rates are not fair any more, and those that are faster where one of `flows` is
// held up.
std::vector<int> Network::unfair(const std::vector<int>& flows, const std::vector<double>& rates) {
  for (std::size_t i = 0; i < flows.size(); ++i) {
    place_[at(flows[i])] = static_cast<int>(i);
  }
  const auto rate_of = [&](int id) {
    const int place = place_[at(id)];
    return place < 0 ? flows_[at(id)].rate : rates[at(place)];
  };
  std::vector<int> known;
  const auto load = [&](int link) -> const Load& {
    Load& one = load_[at(link)];
    if (!one.known) {
      one.known = true;
      known.push_back(link);
      for (const int id : flows_on_[at(link)]) {
        one.used += rate_of(id) * flows_[at(id)].weight;
        one.fastest = std::max(one.fastest, rate_of(id));
      }
    }
    return one;
  };
  const auto is_fair = [&](int id) {
    const Flow& flow = flows_[at(id)];
    const double rate = rate_of(id);
    return rate >= flow.limit * kAlmost ||
           std::any_of(flow.links.begin(), flow.links.end(), [&](int link) {
             const Load& one = load(link);
             return one.used >= bytes_per_s_[at(link)] * kAlmost && rate >= one.fastest * kAlmost;
           });
  };
  std::vector<int> more;
  std::vector<int> seen;
  for (const int id : flows) {
    const bool fair = is_fair(id);
    if (fair && rate_of(id) == flows_[at(id)].rate) {
      continue; // nobody else notices it
    }
    for (const int link : flows_[at(id)].links) {
      if (fair && std::exchange(seen_link_[at(link)], 1) != 0) {
        continue; // its other flows were looked at
      }
      seen.push_back(link);
      for (const int other : flows_on_[at(link)]) {
        const bool faster = !fair && flows_[at(other)].rate * kAlmost > rate_of(id);
        if (place_[at(other)] == -1 && (faster || !is_fair(other))) {
          place_[at(other)] = -2; // noted; its rate is still its own
          more.push_back(other);
        }
      }
    }
  }
  for (const int link : known) {
    load_[at(link)] = {};
  }
  for (const int link : seen) {
    seen_link_[at(link)] = 0;
  }
  for (const int id : flows) {
    place_[at(id)] = -1;
  }
  for (const int id : more) {
    place_[at(id)] = -1;
  }
  return more;
}

void Network::set_rates() {
  if (touched_.empty()) {
    return;
  }
  const double now = touched_at_;
  std::vector<int> flows = on_touched();
  touched_.clear();
  std::vector<double> rates = fair_rates(flows);
  constexpr int kMostTries = 20;
  bool whole = false;
  for (int i = 0; !whole; ++i) {
    const std::vector<int> more = unfair(flows, rates);
    if (more.empty()) {
      break;
    }
    flows.insert(flows.end(), more.begin(), more.end());
    sort(flows);
    whole = i == kMostTries; // what goes so far may as well go everywhere
    if (whole) {
      flows = connected(std::move(flows));
    }
    rates = fair_rates(flows);
  }
  for (std::size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows_[at(flows[i])];
    if (flow.rate == rates[i]) {
      continue;
    }
    flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.updated));
    flow.updated = now;
    flow.rate = rates[i];
    set_end(flows[i], now);
  }
}

double Network::rate(int flow) {
  set_rates();
  return flows_[at(flow)].rate;
}

// The flow's bytes left are those at `now`.
void Network::set_end(int id, double now) {
  Flow& flow = flows_[at(id)];
  ends_.erase({flow.end, flow.order, id});
  flow.end = flow.left > 0 ? now + flow.left / flow.rate : now;
  ends_.insert({flow.end, flow.order, id});
}

double Network::next_end() {
  set_rates();
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.begin()->seconds;
}

bool Network::ends_at(double now) const {
  return !ends_.empty() && ends_.begin()->seconds <= now;
}

int Network::end_next() {
  set_rates();
  const int id = ends_.begin()->flow;
  ends_.erase(ends_.begin());
  Flow& flow = flows_[at(id)];
  touch(flow.end, flow.links);
  for (const int link : flow.links) {
    std::erase(flows_on_[at(link)], id);
  }
  flow.links.clear();
  free_.push_back(id);
  return id;
}

} // namespace tessera::simulator
