#pragma once

// This header is private to the simulator.

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

namespace tessera::simulator {

/// Simulates flows over shared links. A flow is a number of equal streams, its weight; rates of
/// streams are max-min fair: no stream can go faster unless one that is no faster goes slower. So
/// what a flow that is slow elsewhere leaves of a link belongs to the others. Where flows start or
/// end, the rates of those on their links are computed anew beside all others as they are. A flow
/// keeps a rate that is fair: its limit, or that of a full link on which none is faster. A flow
/// whose rate is not fair any more is computed anew too, until none is left; so a change goes as
/// far as it matters, and rates are those of a computation of all flows to 1e-12. Source: Bertsekas
/// and Gallager 1992, Data Networks, section 6.5.2 (progressive filling).
class Network {
 public:
  explicit Network(std::vector<double> bytes_per_s);

  /// Starts a flow at `now` over `links`: `weight` equal streams of `bytes` each. `limit` bounds
  /// the rate of one stream. Returns the id of the flow, which no other flow has until this one
  /// ends.
  int start(double now, double bytes, std::vector<int> links, double weight, double limit);

  /// Returns the rate of one stream of a flow that has not ended.
  double rate(int flow);
  /// Returns the time at which the next flow ends; infinity when nothing flows.
  double next_end();
  /// Ends the flow that next_end() announced and returns its id.
  int end_next();
  /// Returns whether a flow ends at `now` by the rates before what has started or ended at `now`.
  /// If not, more may start then without a rate being computed in between.
  bool ends_at(double now) const;
  /// Returns how many rates have been computed.
  std::int64_t computed() const {
    return computed_;
  }

 private:
  struct Flow {
    double left = 0; // bytes of one stream, at `updated`
    double rate = 0; // of one stream
    double updated = 0;
    double weight = 1;
    double limit = 0;
    std::vector<int> links;
    double end = 0; // at this rate
    std::int64_t order = 0; // in which flows started
  };
  // When a flow ends at its present rate. Of those that end together the one that started first
  // comes first.
  struct End {
    double seconds = 0;
    std::int64_t order = 0;
    int flow = 0;

    auto operator<=>(const End&) const = default;
  };
  // How much of a link is used, and by how fast a stream at most.
  struct Load {
    double used = 0;
    double fastest = 0;
    bool known = false;
  };

  void touch(double now, const std::vector<int>& links);
  void set_rates();
  std::vector<int> on_touched();
  std::vector<int> connected(std::vector<int> flows);
  void sort(std::vector<int>& flows) const;
  std::vector<double> fair_rates(const std::vector<int>& flows);
  std::vector<int> unfair(const std::vector<int>& flows, const std::vector<double>& rates);
  void set_end(int flow, double now);

  std::vector<double> bytes_per_s_;
  std::vector<std::vector<int>> flows_on_;
  std::vector<int> touched_; // links whose flows have changed, at `touched_at_`
  double touched_at_ = 0;
  // Scratch, by link and by flow; equal between calls.
  std::vector<double> left_on_;
  std::vector<double> weight_on_;
  std::vector<char> seen_link_;
  std::vector<Load> load_;
  std::vector<int> place_; // in the flows that are computed; -1: it is none of them
  std::vector<Flow> flows_;
  std::vector<int> free_; // ids of flows that have ended
  std::int64_t started_ = 0;
  std::int64_t computed_ = 0;
  std::set<End> ends_;
};

} // namespace tessera::simulator
