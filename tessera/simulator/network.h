#pragma once

// This header is private to the simulator.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::simulator {

/// How many streams of a flow go over a link.
struct LinkUse {
  int link = 0;
  int streams = 1;

  bool operator==(const LinkUse&) const = default;
};

/// Simulates flows over shared links. A flow is a number of equal streams; rates of streams are
/// max-min fair: no stream can go faster unless one that is no faster goes slower. So what a flow
/// that is slow elsewhere leaves of a link belongs to the others. Where flows start or end, the
/// rates of those on their links are computed anew beside all others as they are. A flow keeps a
/// rate that is fair: its limit, or that of a full link on which none is faster. A flow whose rate
/// is not fair any more is computed anew too, until none is left; so a change goes as far as it
/// matters, and rates are those of a computation of all flows to 1e-12. Source: Bertsekas and
/// Gallager 1992, Data Networks, section 6.5.2 (progressive filling).
///
/// Rates are whole numbers of a unit that is 2^-61 of the fastest link at most. Their sums are
/// exact, so that n flows get the very rate of one flow of n streams, in any order (decision 137).
class Network {
 public:
  /// An infinite bandwidth is that of a link that holds up nothing.
  explicit Network(std::vector<double> bytes_per_s);

  /// Starts a flow at `now` over `links`: equal streams of `bytes` each. `limit` bounds the rate of
  /// one stream. Returns the id of the flow, which no other flow has until this one ends.
  int start(double now, double bytes, const std::vector<LinkUse>& links, double limit);
  /// Starts one whose `streams` all go over all of `links`.
  int start(double now, double bytes, const std::vector<int>& links, int streams, double limit);

  /// Returns the rate of one stream of a flow that has not ended.
  double rate(int flow);
  /// Returns the time at which the next flow ends; infinity when nothing flows.
  double next_end();
  /// Ends the flow that next_end() announced and returns its id.
  int end_next();
  /// Returns whether a flow ends at `now` by the rates before what has started or ended at `now`.
  /// If not, more may start then without a rate being computed in between.
  bool ends_at(double now) const {
    return !ends_.empty() && ends_.front().seconds <= now;
  }
  /// Returns how many rates have been computed.
  std::int64_t computed() const {
    return computed_;
  }

 private:
  using Rate = std::int64_t;
  __extension__ using Wide = __int128; // sums that an int64_t may not hold

  // A link that a flow uses, and where the flow stands in Link::flows.
  struct Use {
    int link = 0;
    int streams = 1;
    int position = 0;
  };
  struct Flow {
    Rate rate = 0; // of one stream
    Rate limit = 0;
    double left = 0; // bytes of one stream, at `updated`
    double updated = 0;
    std::int64_t order = 0; // in which flows started
    double free_rate = 0; // of one that no link holds up; 0: some do
    int place = -1; // in computed_flows_; -1: it is none of them
    int end = -1; // its place in ends_
    int bound = -1; // the link that it is as fast as; -1: it is at its limit
    std::vector<Use> uses = {};
  };
  struct OnLink {
    int flow = 0;
    int streams = 1;
  };
  struct Link {
    Rate capacity = 0;
    Rate used = 0; // by flows that have their rates
    std::int64_t waiting = 0; // streams of flows that wait for theirs
    std::int64_t streams = 0; // of all of its flows
    Wide wanted = 0; // what all of its flows could take at their limits
    Rate fastest = -1; // of a stream on it; -1: not looked up
    bool touched = false;
    bool seen = false;
    bool checked = false;
    std::vector<OnLink> flows = {};
  };
  // When a flow ends at its present rate. Of those that end together the one that started first
  // comes first.
  struct End {
    double seconds = 0;
    std::int64_t order = 0;
    int flow = 0;

    bool before(const End& other) const {
      return seconds != other.seconds ? seconds < other.seconds : order < other.order;
    }
  };
  struct Level {
    Rate rate = 0;
    int link = 0;
    // The heap's front is the lowest.
    bool operator<(const Level& other) const {
      return rate != other.rate ? rate > other.rate : link > other.link;
    }
  };

  void go_to(double now);
  void touch(Link& link, int number);
  Rate share(const Link& link) const;
  bool is_full(const Link& link) const;
  Rate fastest_on(Link& link, int number);
  void set_rates();
  void lift(int flow);
  void lift_connected();
  void fill();
  void fix(Flow& flow, Rate rate, int bound);
  bool is_bound_by(const Flow& flow, int number);
  bool is_fair(Flow& flow);
  bool lift_unfair();
  void keep_rates();
  void set_end(int id);
  void place_end(std::size_t place, const End& end);
  void move_end(std::size_t place, const End& end);
  void erase_end(std::size_t place);

  double unit_ = 1; // bytes a second of a Rate of 1
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<int> free_; // ids of flows that have ended
  std::vector<End> ends_; // a heap of which every entry has four below it
  std::vector<int> touched_; // links whose flows change, at `touched_at_`
  std::vector<int> new_flows_; // that have started then
  double touched_at_ = 0;
  std::int64_t started_ = 0;
  std::int64_t computed_ = 0;
  // Of the computation that runs; empty between two.
  std::vector<int> computed_flows_;
  std::vector<Rate> old_rates_; // theirs before
  std::vector<int> seen_; // their links
  std::vector<int> looked_up_; // links whose `fastest` is known
  std::vector<int> checked_; // links whose flows were looked at
  std::vector<int> more_; // flows to be computed too
  std::vector<Level> levels_;
  std::vector<std::pair<Rate, int>> limits_;
};

} // namespace tessera::simulator
