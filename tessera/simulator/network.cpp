#include "tessera/simulator/network.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "tessera/base/index.h"

namespace tessera::simulator {

Network::Network(std::vector<double> bytes_per_s)
    : bytes_per_s_(std::move(bytes_per_s)),
      flows_on_(bytes_per_s_.size()),
      left_on_(bytes_per_s_.size(), 0),
      weight_on_(bytes_per_s_.size(), 0),
      seen_link_(bytes_per_s_.size(), 0),
      binds_(bytes_per_s_.size(), 0) {}

int Network::start(double now, double bytes, std::vector<int> links, double weight, double limit) {
  const int id = static_cast<int>(flows_.size());
  touch(now, links);
  Flow flow;
  flow.left = bytes;
  flow.updated = now;
  flow.weight = weight;
  flow.limit = limit;
  flow.links = std::move(links);
  for (const int link : flow.links) {
    flows_on_[at(link)].push_back(id);
  }
  if (flow.links.empty()) {
    flow.rate = limit;
    ends_.push({now + bytes / limit, id, 0});
  }
  flows_.push_back(std::move(flow));
  seen_flow_.push_back(0);
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

bool Network::may_bind(int link) const {
  double most = 0;
  for (const int id : flows_on_[at(link)]) {
    most += flows_[at(id)].weight * flows_[at(id)].limit;
  }
  return most > bytes_per_s_[at(link)];
}

// Returns the flows on the touched links and those that share links which may bind with them,
// directly or over others, ascending.
std::vector<int> Network::connected() {
  std::vector<int> links;
  std::vector<int> flows;
  const auto see = [&](int link) {
    if (seen_link_[at(link)] == 0) {
      seen_link_[at(link)] = 1;
      links.push_back(link);
    }
  };
  for (const int link : touched_) {
    see(link);
  }
  const std::size_t touched = links.size();
  for (std::size_t i = 0; i < links.size(); ++i) {
    binds_[at(links[i])] = may_bind(links[i]) ? 1 : 0;
    if (i >= touched && binds_[at(links[i])] == 0) {
      continue;
    }
    for (const int id : flows_on_[at(links[i])]) {
      if (seen_flow_[at(id)] == 0) {
        seen_flow_[at(id)] = 1;
        flows.push_back(id);
        for (const int link : flows_[at(id)].links) {
          see(link);
        }
      }
    }
  }
  for (const int link : links) {
    seen_link_[at(link)] = 0;
  }
  for (const int id : flows) {
    seen_flow_[at(id)] = 0;
  }
  std::sort(flows.begin(), flows.end());
  return flows;
}

// Returns the max-min fair rates of flows that share no link with others: all rise together, until
// a link is full or a flow has reached its limit; its flows keep that rate, the others rise on.
std::vector<double> Network::fair_rates(const std::vector<int>& flows) {
  std::vector<double> rates(flows.size(), -1);
  // The next link to be full and the next limit; a link's share only rises, so old entries are low.
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> full;
  std::vector<Entry> limits;
  std::vector<int> links;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Flow& flow = flows_[at(flows[i])];
    limits.emplace_back(flow.limit, flows[i]);
    for (const int link : flow.links) {
      if (binds_[at(link)] == 0) {
        continue;
      }
      if (weight_on_[at(link)] == 0) {
        links.push_back(link);
        left_on_[at(link)] = bytes_per_s_[at(link)];
      }
      weight_on_[at(link)] += flow.weight;
    }
  }
  std::sort(limits.begin(), limits.end());
  const auto share = [&](int link) { return left_on_[at(link)] / weight_on_[at(link)]; };
  for (const int link : links) {
    full.emplace(share(link), link);
  }
  const auto fix = [&](int id, double rate) {
    const auto found = std::lower_bound(flows.begin(), flows.end(), id);
    double& own = rates[static_cast<std::size_t>(found - flows.begin())];
    if (own >= 0) {
      return;
    }
    own = rate;
    const Flow& flow = flows_[at(id)];
    for (const int link : flow.links) {
      if (binds_[at(link)] == 0) {
        continue;
      }
      left_on_[at(link)] = std::max(0.0, left_on_[at(link)] - rate * flow.weight);
      weight_on_[at(link)] -= flow.weight;
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
      fix(limits[next_limit].second, limits[next_limit].first);
      ++next_limit;
    } else {
      full.pop();
      for (const int id : flows_on_[at(link)]) {
        fix(id, level);
      }
    }
  }
  for (const int link : links) {
    weight_on_[at(link)] = 0;
  }
  for (std::size_t i = 0; i < flows.size(); ++i) {
    if (rates[i] < 0) { // no link binds it
      rates[i] = flows_[at(flows[i])].limit;
    }
  }
  return rates;
}

void Network::set_rates() {
  if (touched_.empty()) {
    return;
  }
  const double now = touched_at_;
  const std::vector<int> flows = connected();
  const std::vector<double> rates = fair_rates(flows);
  touched_.clear();
  for (std::size_t i = 0; i < flows.size(); ++i) {
    Flow& flow = flows_[at(flows[i])];
    if (flow.rate == rates[i]) {
      continue;
    }
    flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.updated));
    flow.updated = now;
    flow.rate = rates[i];
    ++flow.version;
    ends_.push({now + flow.left / flow.rate, flows[i], flow.version});
  }
}

double Network::rate(int flow) {
  set_rates();
  return flows_[at(flow)].rate;
}

void Network::drop_stale() {
  while (!ends_.empty()) {
    const End& end = ends_.top();
    const Flow& flow = flows_[at(end.flow)];
    if (!flow.done && flow.version == end.version) {
      return;
    }
    ends_.pop();
  }
}

double Network::next_end() {
  set_rates();
  drop_stale();
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.top().time;
}

int Network::end_next() {
  set_rates();
  drop_stale();
  const End end = ends_.top();
  ends_.pop();
  Flow& flow = flows_[at(end.flow)];
  flow.done = true;
  touch(end.time, flow.links);
  for (const int link : flow.links) {
    std::erase(flows_on_[at(link)], end.flow);
  }
  flow.links = {};
  return end.flow;
}

} // namespace tessera::simulator
