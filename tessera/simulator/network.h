#pragma once

// This header is private to the simulator.

#include <cstdint>
#include <queue>
#include <vector>

namespace tessera::simulator {

/// Simulates flows over shared links. A flow is a number of equal streams, its weight; rates of
/// streams are max-min fair: no stream can go faster unless one that is no faster goes slower. So
/// what a flow that is slow elsewhere leaves of a link belongs to the others. Rates are computed
/// anew whenever a flow starts or ends, for all flows that are connected with it over links. A link
/// that carries what all its flows could take at their limits holds up none of them, so it connects
/// none.
/// Source: Bertsekas and Gallager 1992, Data Networks, section 6.5.2 (progressive filling).
class Network {
 public:
  explicit Network(std::vector<double> bytes_per_s);

  /// Starts a flow at `now` over `links`: `weight` equal streams of `bytes` each. `limit` bounds
  /// the rate of one stream. Returns the id of the flow; ids count from 0.
  int start(double now, double bytes, std::vector<int> links, double weight, double limit);

  /// Returns the rate of one stream of a flow that has not ended.
  double rate(int flow);
  /// Returns the time at which the next flow ends; infinity when nothing flows.
  double next_end();
  /// Ends the flow that next_end() announced and returns its id.
  int end_next();

 private:
  struct Flow {
    double left = 0; // bytes of one stream, at `updated`
    double rate = 0; // of one stream
    double updated = 0;
    double weight = 1;
    double limit = 0;
    std::vector<int> links;
    std::uint32_t version = 0; // counts changes of the rate; ends of older versions are stale
    bool done = false;
  };
  struct End {
    double time = 0;
    int flow = 0;
    std::uint32_t version = 0;
    bool operator>(const End& other) const {
      return time != other.time ? time > other.time : flow > other.flow;
    }
  };

  void touch(double now, const std::vector<int>& links);
  void set_rates();
  /// Returns whether a link may hold up a flow: its flows could together take more than it carries.
  bool may_bind(int link) const;
  std::vector<int> connected();
  std::vector<double> fair_rates(const std::vector<int>& flows);
  void drop_stale();

  std::vector<double> bytes_per_s_;
  std::vector<std::vector<int>> flows_on_;
  std::vector<int> touched_; // links whose flows have changed, at `touched_at_`
  double touched_at_ = 0;
  // Scratch of fair_rates and connected, by link and by flow; equal between calls.
  std::vector<double> left_on_;
  std::vector<double> weight_on_;
  std::vector<char> seen_link_;
  std::vector<char> binds_; // links that connected() has seen: may_bind
  std::vector<char> seen_flow_;
  std::vector<Flow> flows_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

} // namespace tessera::simulator
