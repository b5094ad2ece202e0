#pragma once

// This header is private to the simulator.

#include <cstdint>
#include <queue>
#include <vector>

namespace tessera::simulator {

/// Simulates flows over shared links. The rate of a flow is its share of its narrowest link, which
/// all flows on that link divide by weight, and at most the flow's own limit. Rates are computed
/// anew for the flows of a link whenever one starts or ends.
class Network {
 public:
  explicit Network(std::vector<double> bytes_per_s);

  /// Starts a flow at `now` over `links`: `weight` equal streams of `bytes` each. `limit` bounds
  /// the rate of one stream. Returns the id of the flow; ids count from 0.
  int start(double now, double bytes, std::vector<int> links, double weight, double limit);

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

  void set_rates(double now, const std::vector<int>& links);
  void drop_stale();

  std::vector<double> bytes_per_s_;
  std::vector<double> weight_on_; // sum of the weights of a link's flows
  std::vector<std::vector<int>> flows_on_;
  std::vector<Flow> flows_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

} // namespace tessera::simulator
