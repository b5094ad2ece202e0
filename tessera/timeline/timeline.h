#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
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
  std::string run_id; // of the run that was measured; "" when unknown or simulated
  std::vector<Event> events;
};

/// Collects the events of one rank; off until enabled. It holds at most
/// `capacity` events: later ones are counted, not kept, so that a forgotten
/// recorder cannot eat the memory of a long run.
/// Threads: any thread.
class Recorder {
 public:
  static constexpr std::size_t kDefaultCapacity = 1 << 18;

  Recorder(int rank, int pp_rank, std::size_t capacity = kDefaultCapacity);
  void enable(bool on);
  bool enabled() const;
  /// Microseconds since the origin. Until set_origin is called the origin is
  /// that of the steady clock, which all ranks of a node share.
  double now_us() const;
  /// Makes now the origin; call on all ranks after a barrier so that ranks of
  /// several nodes agree too. Events added before keep their old origin: take
  /// them first.
  void set_origin();
  /// Keeps `event` while enabled; rank and pp_rank are filled in.
  void add(Event event);
  /// The events since the last call, in order of their start; makes room.
  std::vector<Event> take();
  /// Number of events refused since the last call of take() because the
  /// recorder was full.
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

/// Records what its scope did as one event; costs two clock reads while the recorder is on and
/// nothing while it is off. A scope that an exception leaves is recorded as well.
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

/// Share of (ranks x span) in which ranks ran neither forward nor backward, for
/// one step (or all when step < 0). The span of a step reaches from its first
/// forward or backward event to the end of its last, over all ranks; ranks are
/// those with any event in the timeline. An event of category "wait" inside a
/// forward or backward event of the same lane is not running. Over all steps it
/// is the mean weighted by span, so that time between steps is no bubble.
/// Returns: 0 when the step has no forward or backward event.
double bubble_share(const Timeline& timeline, int step = -1);

/// Steps that have events, ascending; events outside any step (-1) are left
/// out.
std::vector<int> steps(const Timeline& timeline);

/// Chrome trace event format (chrome://tracing, Perfetto): process = rank,
/// thread = lane, one complete event ("X") each.
/// Source: Google, "Trace Event Format".
std::string to_chrome_trace(const Timeline& timeline);

/// The versioned file form: an object with one line for each event.
std::string to_json(const Timeline& timeline);
/// Throws: Error naming the event, the field, what was found and what is
/// allowed: a rank outside the world, an end before its start, a number that
/// is not one, a field that is missing or unknown.
Timeline timeline_from_json(const std::string& text);

} // namespace tessera::timeline
