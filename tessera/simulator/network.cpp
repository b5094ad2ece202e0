#include "tessera/simulator/network.h"

#include <algorithm>
#include <limits>

namespace tessera::simulator {

namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

} // namespace

Network::Network(std::vector<double> bytes_per_s)
    : bytes_per_s_(std::move(bytes_per_s)),
      weight_on_(bytes_per_s_.size(), 0),
      flows_on_(bytes_per_s_.size()) {}

int Network::start(double now, double bytes, std::vector<int> links, double weight, double limit) {
  const int id = static_cast<int>(flows_.size());
  Flow flow;
  flow.left = bytes;
  flow.updated = now;
  flow.weight = weight;
  flow.limit = limit;
  flow.links = std::move(links);
  flows_.push_back(flow);
  for (const int link : flow.links) {
    weight_on_[at(link)] += weight;
    flows_on_[at(link)].push_back(id);
  }
  if (flow.links.empty()) {
    flows_[at(id)].rate = limit;
    ends_.push({now + bytes / limit, id, 0});
  } else {
    set_rates(now, flow.links);
  }
  return id;
}

void Network::set_rates(double now, const std::vector<int>& links) {
  std::vector<int> touched;
  for (const int link : links) {
    touched.insert(touched.end(), flows_on_[at(link)].begin(), flows_on_[at(link)].end());
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const int id : touched) {
    Flow& flow = flows_[at(id)];
    flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.updated));
    flow.updated = now;
    flow.rate = flow.limit;
    for (const int link : flow.links) {
      flow.rate = std::min(flow.rate, bytes_per_s_[at(link)] / weight_on_[at(link)]);
    }
    ++flow.version;
    ends_.push({now + flow.left / flow.rate, id, flow.version});
  }
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
  drop_stale();
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.top().time;
}

int Network::end_next() {
  drop_stale();
  const End end = ends_.top();
  ends_.pop();
  Flow& flow = flows_[at(end.flow)];
  flow.done = true;
  for (const int link : flow.links) {
    weight_on_[at(link)] -= flow.weight;
    std::erase(flows_on_[at(link)], end.flow);
  }
  const std::vector<int> links = std::move(flow.links);
  set_rates(end.time, links);
  return end.flow;
}

} // namespace tessera::simulator
