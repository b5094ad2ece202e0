#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::sharding {

/// Which parameters are whole in memory that parts of other nodes are gathered into, who reads
/// them, and who fetches them: one table for all who use that memory, which may be several
/// processes of a node. Each parameter is fetched by whoever is the first to need or to expect it.
/// The table moves no bytes and knows neither libtorch nor ranks.
///
/// What was read stays as long as there is room; what is expected stays longer. Only what operators
/// read at this moment may exceed the cap.
/// Threads: any, of any process that maps the memory.
/// Source: the library's documentation, sdp_max_live_parameters.
class LiveTable {
 public:
  /// Returns the memory that the table of as many parameters needs, in whole pages.
  static std::size_t bytes_for(std::size_t parameters);
  /// Is called when the numbers of a parameter are needed no more.
  using Release = std::function<void(int parameter)>;

  /// `memory` is filled with zeros at first and outlives the table; `elements` of each parameter
  /// and `most_elements`, sdp_max_live_parameters, are the same for all who use it. `release` runs
  /// while others wait.
  LiveTable(
      std::byte* memory,
      std::vector<std::int64_t> elements,
      std::int64_t most_elements,
      Release release);
  /// Makes the table in its memory; one of those who use it calls this before any of them calls
  /// another member.
  void make();

  /// Notes that an operator is going to read these parameters, and that its rank expects to read
  /// `expected` next, no longer `expected_before`.
  void begin_reading(
      const std::vector<int>& parameters,
      const std::vector<int>& expected_before,
      const std::vector<int>& expected);
  struct Claim {
    std::vector<int> fetch; // is the caller's to fetch, and then to announce by `arrived`
    bool ready = false; // all that it reads is here
    std::uint32_t seen = 0; // for `wait`
  };
  /// Claims what no other fetches so far. A reader repeats it until the claim is ready, because it
  /// also needs what others fetch and the room that their fetches take. Expected parameters are
  /// claimed once all that is read is under way, as far as they fit.
  Claim claim(const std::vector<int>& parameters, const std::vector<int>& expected);
  /// Sleeps until the table has changed since the claim, or for `timeout`.
  void wait(std::uint32_t seen, std::chrono::milliseconds timeout);
  void arrived(int parameter);
  void end_reading(const std::vector<int>& parameters);
  /// Notes that this rank expects these no more.
  void leave(const std::vector<int>& expected);
  /// Makes nothing whole, before values change. Nobody may read or fetch meanwhile.
  void forget();

  /// Counts since the table was made. Live elements are whole or on their way; `highest_elements`
  /// is the most that there were.
  struct Counts {
    std::int64_t live_elements = 0;
    std::int64_t highest_elements = 0;
    std::int64_t fetches = 0;
    std::int64_t ahead = 0; // of these, before an operator needed them
  };
  Counts counts() const;

 private:
  enum class State : std::int32_t { kAbsent, kComing, kWhole };
  enum class Room { kThere, kSoon, kNone };
  struct Shared;
  struct Entry;
  Entry& entry(int parameter) const;
  int oldest(bool also_expected) const;
  Room make_room(std::int64_t elements, bool needed);
  void take(int parameter, bool ahead, Claim& claim);

  Shared* shared_;
  std::vector<std::int64_t> elements_;
  std::int64_t most_elements_;
  Release release_;
};

} // namespace tessera::sharding
