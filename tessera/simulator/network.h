#pragma once

// Private to the simulator.

#include <cstdint>
#include <queue>
#include <vector>

namespace tessera::simulator {

/// Flows over shared links: each flow's rate is that of its narrowest link,
/// which all flows on it share evenly by weight, and at most its own limit.
/// Rates are set anew for the flows of a link whenever one starts or ends.
class Network {
 public:
  explicit Network(std::vector<double> bytes_per_s);

  /// Starts a flow of `bytes` at `now` over `links`, as `weight` equal streams
  /// that each carry `bytes`; `limit` bounds the rate of one. Returns its id.
  int start(double now, double bytes, std::vector<int> links, double weight, double limit);

  /// Time of the next end; infinite when nothing flows.
  double next_end();
  /// Ends the flow that next_end() told of and returns its id.
  int end_next();

 private:
  struct Flow {
    double left = 0;
    double rate = 0;
    double updated = 0;
    double weight = 1;
    double limit = 0;
    std::vector<int> links;
    std::uint32_t version = 0;
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
