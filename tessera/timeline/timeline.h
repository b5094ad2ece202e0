#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::timeline {

/// Work that ran from `start_us` to `end_us` on a rank. Real and simulated runs write the same
/// form.
/// Units: microseconds since the origin of the recorder or simulation.
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

/// The events of a whole run and what is needed to interpret them.
struct Timeline {
  int world_size = 1;
  std::string origin = "measured"; // or "simulated"
  std::string run_id; // identifies the measured run; "" when unknown or simulated
  std::vector<Event> events;
};

/// Collects the events of one rank once it is enabled. It keeps at most `capacity` events and
/// counts the later ones, so that a recorder that nobody empties cannot exhaust memory in a long
/// run.
/// Threads: any thread.
class Recorder {
 public:
  static constexpr std::size_t kDefaultCapacity = 1 << 18;

  Recorder(int rank, int pp_rank, std::size_t capacity = kDefaultCapacity);
  void enable(bool on);
  bool enabled() const;
  /// Returns microseconds since the origin. Before set_origin is called the origin is that of the
  /// steady clock, which all ranks of a node share.
  double now_us() const;
  /// Sets the origin to now. Call it on all ranks after a barrier, so that ranks of several nodes
  /// agree too. Events added before keep their old origin; take them first.
  void set_origin();
  /// Keeps `event` with this recorder's rank and pp_rank; does nothing while disabled.
  void add(Event event);
  /// Returns the events since the last call, ordered by start, and frees their memory.
  std::vector<Event> take();
  /// Returns the number of events dropped since the last call of take() because the recorder was
  /// full.
  std::size_t dropped() const;

 private:
  const int rank_;
  const int pp_rank_;
  const std::size_t capacity_;
  std::atomic<bool> enabled_{false};
  std::atomic<std::chrono::steady_clock::rep> origin_{0};
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::size_t dropped_ = 0;
};

/// Records its scope as one event, also when an exception leaves the scope. It costs two clock
/// reads while the recorder is on and nothing while it is off.
/// Threads: one thread, any.
class Span {
 public:
  Span(Recorder& recorder, std::string name, std::string category, int step = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Recorder* recorder_; // null while the recorder is off
  Event event_;
};

/// Returns the share of (ranks x span) in which ranks ran neither forward nor backward, for one
/// step (or all when step < 0). The span of a step reaches from its first forward or backward event
/// to the end of its last, over all ranks; ranks are those with any event in the timeline. An event
/// of category "wait" inside a forward or backward event of the same lane does not count as
/// running. Over all steps the result is the mean weighted by span, so that time between steps is
/// no bubble. It is 0 when the step has no forward or backward event.
double bubble_share(const Timeline& timeline, int step = -1);

/// Returns the steps that have events, ascending. Events outside any step (-1) are left out.
std::vector<int> steps(const Timeline& timeline);

/// Returns the timeline in the Chrome trace event format (chrome://tracing, Perfetto): a rank is a
/// process, a lane a thread, an event one complete event ("X").
/// Source: Google, "Trace Event Format".
std::string to_chrome_trace(const Timeline& timeline);

/// Returns the versioned file form: an object with one line for each event.
/// Throws: Error for an event with a time that is not finite.
std::string to_json(const Timeline& timeline);
/// Reads the file form. Throws: Error naming the event, the field, the value found and what is
/// allowed, for a rank outside the world, an end before its start, a number that is not one, or a
/// field that is missing or unknown.
Timeline timeline_from_json(const std::string& text);

} // namespace tessera::timeline
