#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::timeline {

/// Something that ran from `start_us` to `end_us` on a rank. A real run and a
/// simulated one write the same form.
/// Units: microseconds since the recorder's (or simulation's) origin.
struct Event {
  std::string name; // "layers.3", "all_reduce dp"
  std::string category; // "forward", "backward", "comm", "optimizer", "wait"
  int rank = 0; // global
  int pp_rank = 0;
  int microbatch = -1; // -1: none
  int step = -1;
  int lane = 0; // worker thread or stream within the rank
  double start_us = 0;
  double end_us = 0;
  std::int64_t bytes = 0;
};

/// A whole run's events with what is needed to read them.
struct Timeline {
  int world_size = 1;
  std::string origin = "measured"; // or "simulated"
  std::vector<Event> events;
};

/// Collects the events of one rank; off until enabled, bounded in size.
/// Threads: any thread.
class Recorder {
 public:
  Recorder(int rank, int pp_rank);
  void enable(bool on);
  bool enabled() const;
  double now_us() const;
  /// Origin shared by all ranks of a node (steady clock); call on all ranks
  /// after a barrier so that ranks of several nodes agree too.
  void set_origin();
  void add(Event event); // rank and pp_rank are filled in
  std::vector<Event> take();

 private:
  int rank_;
  int pp_rank_;
  bool enabled_ = false;
  std::chrono::steady_clock::time_point origin_;
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

/// Share of (ranks x span) in which pp ranks ran neither forward nor backward,
/// for one step (or all when step < 0). 0 for an empty timeline.
double bubble_share(const Timeline& timeline, int step = -1);

/// Chrome trace event format (chrome://tracing, Perfetto): process = rank.
std::string to_chrome_trace(const Timeline& timeline);

std::string to_json(const Timeline& timeline);
Timeline timeline_from_json(const std::string& text);

} // namespace tessera::timeline
