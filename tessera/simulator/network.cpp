#include "tessera/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/index.h"

namespace tessera::simulator {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Two rates are one rate where they differ by rounding: 2^-42 of them. What checks a result of such
// steps allows for four of them.
constexpr int kSameBits = 42;
constexpr int kAlmostBits = 40;
constexpr int kRateBits = 61; // so that the sum of two rates is in range

// Returns whether `rate` is at least `other`, but for 2^-bits of it.
constexpr bool at_least(std::int64_t rate, std::int64_t other, int bits) {
  return rate >= other - (other >> bits);
}

constexpr bool same(std::int64_t a, std::int64_t b) {
  return at_least(a, b, kSameBits) && at_least(b, a, kSameBits);
}

} // namespace

Network::Network(std::vector<double> bytes_per_s) : links_(bytes_per_s.size()) {
  double most = 0;
  for (const double one : bytes_per_s) {
    most = std::isfinite(one) ? std::max(most, one) : most;
  }
  // A power of two, so that a bandwidth is a whole number of it without rounding.
  unit_ = most > 0 ? std::ldexp(1.0, std::ilogb(most) + 1 - kRateBits) : 1;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (std::isfinite(bytes_per_s[i])) {
      links_[i].capacity = std::max<Rate>(1, static_cast<Rate>(bytes_per_s[i] / unit_));
    }
  }
}

int Network::start(
    double now,
    double bytes,
    const std::vector<int>& links,
    int streams,
    double limit) {
  std::vector<LinkUse> uses;
  uses.reserve(links.size());
  for (const int link : links) {
    uses.push_back({link, streams});
  }
  return start(now, bytes, uses, limit);
}

int Network::start(double now, double bytes, const std::vector<LinkUse>& links, double limit) {
  go_to(now);
  int id = static_cast<int>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[at(id)];
  flow.rate = 0;
  flow.limit = std::numeric_limits<Rate>::max();
  flow.left = bytes;
  flow.updated = now;
  flow.order = started_++;
  flow.free_rate = 0;
  flow.bound = -1;
  for (const LinkUse& use : links) {
    const Link& link = links_[at(use.link)];
    if (link.capacity > 0) {
      flow.uses.push_back({use.link, use.streams, static_cast<int>(link.flows.size())});
      flow.limit = std::min(flow.limit, link.capacity);
    }
  }
  if (flow.uses.empty()) {
    flow.free_rate = limit;
    set_end(id);
    return id;
  }
  if (limit / unit_ < static_cast<double>(flow.limit)) {
    flow.limit = std::max<Rate>(1, static_cast<Rate>(limit / unit_));
  }
  for (const Use& use : flow.uses) {
    Link& link = links_[at(use.link)];
    link.flows.push_back({id, use.streams});
    link.streams += use.streams;
    link.wanted += static_cast<Wide>(flow.limit) * use.streams;
    touch(link, use.link);
  }
  new_flows_.push_back(id);
  return id;
}

// Computes what changed before, since rates follow once for all changes of one time.
void Network::go_to(double now) {
  if (now != touched_at_) {
    set_rates();
    touched_at_ = now;
  }
}

// Notes a link whose flows change. One that carries what all its flows could take at their limits
// holds up none of them.
void Network::touch(Link& link, int number) {
  if (!link.touched && link.wanted > link.capacity) {
    link.touched = true;
    touched_.push_back(number);
  }
}

Network::Rate Network::share(const Link& link) const {
  const Rate left = std::max<Rate>(0, link.capacity - link.used);
  return std::max<Rate>(
      1, static_cast<Rate>(static_cast<double>(left) / static_cast<double>(link.waiting)));
}

bool Network::is_full(const Link& link) const {
  return at_least(link.used + link.streams, link.capacity, kAlmostBits);
}

Network::Rate Network::fastest_on(Link& link, int number) {
  if (link.fastest < 0) {
    looked_up_.push_back(number);
    for (const OnLink& one : link.flows) {
      link.fastest = std::max(link.fastest, flows_[at(one.flow)].rate);
    }
  }
  return link.fastest;
}

void Network::set_rates() {
  if (touched_.empty() && new_flows_.empty()) {
    return;
  }
  for (const int number : touched_) {
    Link& link = links_[at(number)];
    link.touched = false;
    for (const OnLink& one : link.flows) {
      lift(one.flow);
    }
  }
  touched_.clear();
  for (const int id : new_flows_) {
    lift(id);
  }
  new_flows_.clear();
  fill();
  constexpr int kMostTries = 20;
  for (int i = 0; lift_unfair(); ++i) {
    if (i == kMostTries) {
      lift_connected(); // what goes so far may as well go everywhere
    }
    fill();
  }
  keep_rates();
}

// Adds a flow to those that are computed: its links carry it no more.
void Network::lift(int id) {
  Flow& flow = flows_[at(id)];
  if (flow.place < 0) {
    flow.place = static_cast<int>(computed_flows_.size());
    computed_flows_.push_back(id);
    old_rates_.push_back(flow.rate);
  } else if (flow.rate < 0) {
    return;
  }
  for (const Use& use : flow.uses) {
    Link& link = links_[at(use.link)];
    link.used -= flow.rate * use.streams;
    link.waiting += use.streams;
    if (!link.seen) {
      link.seen = true;
      seen_.push_back(use.link);
    }
  }
  flow.rate = -1;
}

// Adds all flows that share links with those that are computed, directly or over others.
void Network::lift_connected() {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    for (const OnLink& one : links_[at(seen_[i])].flows) {
      lift(one.flow);
    }
  }
}

// Sets the max-min fair rates of the lifted flows beside all others, which keep theirs: all rise
// together, until a link is full or a flow has reached its limit; its flows keep that rate, the
// others rise on.
void Network::fill() {
  computed_ += static_cast<std::int64_t>(computed_flows_.size());
  levels_.clear();
  for (const int number : seen_) {
    const Link& link = links_[at(number)];
    if (link.waiting > 0 && link.wanted > link.capacity) {
      levels_.push_back({share(link), number});
    }
  }
  std::make_heap(levels_.begin(), levels_.end());
  Rate lowest_limit = std::numeric_limits<Rate>::max();
  for (const int id : computed_flows_) {
    lowest_limit = std::min(lowest_limit, flows_[at(id)].limit);
  }
  limits_.clear();
  std::size_t next_limit = 0;
  Rate level = 0;
  while (!levels_.empty()) {
    const auto [rate, number] = levels_.front();
    const Link& link = links_[at(number)];
    const Rate now = link.waiting > 0 ? share(link) : 0;
    if (link.waiting == 0 || now > rate) {
      // Others have their rates since: its share has risen, if it is there at all.
      std::pop_heap(levels_.begin(), levels_.end());
      levels_.pop_back();
      if (link.waiting > 0) {
        levels_.push_back({now, number});
        std::push_heap(levels_.begin(), levels_.end());
      }
      continue;
    }
    if (lowest_limit <= now && limits_.empty()) {
      for (const int id : computed_flows_) {
        limits_.emplace_back(flows_[at(id)].limit, id);
      }
      std::sort(limits_.begin(), limits_.end());
    }
    if (next_limit < limits_.size() && limits_[next_limit].first <= now) {
      Flow& flow = flows_[at(limits_[next_limit].second)];
      if (flow.rate < 0) {
        fix(flow, flow.limit, -1);
      }
      ++next_limit;
      continue;
    }
    // Links that are full together give one rate, whichever comes first.
    level = same(now, level) ? level : std::max(now, level);
    std::pop_heap(levels_.begin(), levels_.end());
    levels_.pop_back();
    for (const OnLink& one : link.flows) {
      if (Flow& flow = flows_[at(one.flow)]; flow.rate < 0) {
        fix(flow, level, number);
      }
    }
  }
  for (const int id : computed_flows_) {
    if (Flow& flow = flows_[at(id)]; flow.rate < 0) {
      fix(flow, flow.limit, -1); // no link binds it
    }
  }
}

void Network::fix(Flow& flow, Rate rate, int bound) {
  const Rate old = old_rates_[at(flow.place)];
  flow.rate = same(rate, old) ? old : rate;
  flow.bound = bound;
  for (const Use& use : flow.uses) {
    Link& link = links_[at(use.link)];
    link.used += flow.rate * use.streams;
    link.waiting -= use.streams;
  }
}

bool Network::is_bound_by(const Flow& flow, int number) {
  Link& link = links_[at(number)];
  return is_full(link) && at_least(flow.rate, fastest_on(link, number), kAlmostBits);
}

bool Network::is_fair(Flow& flow) {
  if (at_least(flow.rate, flow.limit, kAlmostBits)) {
    return true;
  }
  // A link on which nothing was computed still binds what it bound.
  if (flow.bound >= 0 && (!links_[at(flow.bound)].seen || is_bound_by(flow, flow.bound))) {
    return true;
  }
  for (const Use& use : flow.uses) {
    if (is_bound_by(flow, use.link)) {
      flow.bound = use.link;
      return true;
    }
  }
  return false;
}

// Lifts the flows beside those that are computed that must be computed with them: those whose own
// rates are not fair any more, and those that are faster where one of the computed is held up.
// Returns whether there are any; then all are lifted.
bool Network::lift_unfair() {
  const std::size_t before = computed_flows_.size();
  std::vector<int>& more = more_;
  more.clear();
  for (std::size_t i = 0; i < before; ++i) {
    Flow& flow = flows_[at(computed_flows_[i])];
    const bool fair = is_fair(flow);
    if (fair && flow.rate == old_rates_[i]) {
      continue; // nobody else notices it
    }
    for (const Use& use : flow.uses) {
      Link& link = links_[at(use.link)];
      if (fair && link.checked) {
        continue;
      }
      if (!link.checked) {
        link.checked = true;
        checked_.push_back(use.link);
      }
      for (const OnLink& one : link.flows) {
        Flow& other = flows_[at(one.flow)];
        if (other.place >= 0) {
          continue;
        }
        const bool faster = !fair && !at_least(flow.rate, other.rate, kAlmostBits);
        if (faster || !is_fair(other)) {
          other.place = 0; // noted
          more.push_back(one.flow);
        }
      }
    }
  }
  for (const int number : checked_) {
    links_[at(number)].checked = false;
  }
  checked_.clear();
  for (const int number : looked_up_) {
    links_[at(number)].fastest = -1;
  }
  looked_up_.clear();
  if (more.empty()) {
    return false;
  }
  for (std::size_t i = 0; i < before; ++i) {
    lift(computed_flows_[i]);
  }
  for (const int id : more) {
    flows_[at(id)].place = -1;
    lift(id);
  }
  return true;
}

void Network::keep_rates() {
  for (std::size_t i = 0; i < computed_flows_.size(); ++i) {
    const int id = computed_flows_[i];
    Flow& flow = flows_[at(id)];
    flow.place = -1;
    const Rate old = old_rates_[i];
    if (flow.rate != old) {
      const double sent = static_cast<double>(old) * unit_ * (touched_at_ - flow.updated);
      flow.left = std::max(0.0, flow.left - sent);
      flow.updated = touched_at_;
      set_end(id);
    }
  }
  computed_flows_.clear();
  old_rates_.clear();
  for (const int number : seen_) {
    links_[at(number)].seen = false;
  }
  seen_.clear();
}

double Network::rate(int flow) {
  set_rates();
  const Flow& one = flows_[at(flow)];
  return one.free_rate > 0 ? one.free_rate : static_cast<double>(one.rate) * unit_;
}

// The flow's bytes left are those at `updated`.
void Network::set_end(int id) {
  Flow& flow = flows_[at(id)];
  const double rate = flow.free_rate > 0 ? flow.free_rate : static_cast<double>(flow.rate) * unit_;
  const double seconds = flow.left > 0 ? flow.updated + flow.left / rate : flow.updated;
  if (flow.end < 0) {
    ends_.emplace_back();
    flow.end = static_cast<int>(ends_.size()) - 1;
  }
  move_end(at(flow.end), {seconds, flow.order, id});
}

void Network::place_end(std::size_t place, const End& end) {
  ends_[place] = end;
  flows_[at(end.flow)].end = static_cast<int>(place);
}

// Puts an end where the one at `place` was, and from there where it belongs.
void Network::move_end(std::size_t place, const End& end) {
  while (place > 0 && end.before(ends_[(place - 1) / 4])) {
    place_end(place, ends_[(place - 1) / 4]);
    place = (place - 1) / 4;
  }
  for (;;) {
    const std::size_t first = 4 * place + 1;
    const std::size_t last = std::min(first + 4, ends_.size());
    std::size_t next = first;
    for (std::size_t i = first + 1; i < last; ++i) {
      next = ends_[i].before(ends_[next]) ? i : next;
    }
    if (next >= ends_.size() || !ends_[next].before(end)) {
      break;
    }
    place_end(place, ends_[next]);
    place = next;
  }
  place_end(place, end);
}

void Network::erase_end(std::size_t place) {
  const End last = ends_.back();
  ends_.pop_back();
  if (place < ends_.size()) {
    move_end(place, last);
  }
}

// Flows that end together do so before rates follow: a rate between two of them would round what is
// left of others.
double Network::next_end() {
  if (!ends_at(touched_at_)) {
    set_rates();
  }
  return ends_.empty() ? kInfinite : ends_.front().seconds;
}

int Network::end_next() {
  next_end();
  const End end = ends_.front();
  erase_end(0);
  go_to(end.seconds);
  Flow& flow = flows_[at(end.flow)];
  for (const Use& use : flow.uses) {
    Link& link = links_[at(use.link)];
    touch(link, use.link);
    link.used -= flow.rate * use.streams;
    link.streams -= use.streams;
    link.wanted -= static_cast<Wide>(flow.limit) * use.streams;
    const OnLink last = link.flows.back();
    link.flows.pop_back();
    if (at(use.position) < link.flows.size()) {
      link.flows[at(use.position)] = last;
      for (Use& moved : flows_[at(last.flow)].uses) {
        if (moved.link == use.link) {
          moved.position = use.position;
        }
      }
    }
  }
  flow.uses.clear();
  flow.end = -1;
  free_.push_back(end.flow);
  return end.flow;
}

} // namespace tessera::simulator
