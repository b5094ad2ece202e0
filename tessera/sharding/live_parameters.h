#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// Decides which parameters a rank holds in gathered form where parts lie on other nodes: what an
/// operator reads, what the next ones are expected to read, and, as long as there is room, what was
/// read before. It moves no bytes and knows neither libtorch nor ranks.
///
/// The order of reads is learnt in one step and expected in the next. A step that takes another way
/// gathers what it reads when it reads it; what was gathered ahead in vain is released first.
/// Threads: one at a time.
/// Source: the library's documentation, sdp_max_live_parameters.
class LiveParameters {
 public:
  /// The number of parameters that are gathered ahead of their reader: those of about two layers.
  static constexpr std::size_t kAhead = 4;
  /// The longest order that is learnt, so that an evaluation without end needs no memory without
  /// end.
  static constexpr std::size_t kLongestOrder = 1 << 16;

  /// What is to be done, releases first.
  struct Changes {
    std::vector<int> release;
    std::vector<int> gather; // what is read now, then what is expected, in the order of reading
  };

  /// `most_elements`: of all parameters that are gathered at a time; only what operators read at
  /// this moment may exceed it.
  explicit LiveParameters(std::int64_t most_elements) : most_elements_(most_elements) {}

  /// Adds parameter 0, 1, ...
  void add(std::int64_t elements);

  /// The order that was learnt since the last call is expected from now on.
  void begin_step();
  /// An operator begins to read these.
  Changes begin_reading(const std::vector<int>& parameters);
  /// It has ended. Returns what is to be released.
  std::vector<int> end_reading(const std::vector<int>& parameters);
  /// Values change: nothing is gathered any more. Nothing may be read now.
  void forget();

  bool is_live(int parameter) const {
    return parameters_[parameter].live;
  }
  /// Length of the order that is expected.
  std::size_t learnt_reads() const {
    return order_.size();
  }
  /// Elements that are gathered, now and at most since the construction.
  std::int64_t live_elements() const {
    return live_elements_;
  }
  std::int64_t highest_elements() const {
    return highest_elements_;
  }

 private:
  struct Parameter {
    std::int64_t elements = 0;
    bool live = false;
    bool expected = false; // one of the next reads
    int readers = 0;
    std::int64_t read_at = 0; // count of reads when the last one began
  };

  void follow(int parameter);
  void expect_next();
  int oldest(bool also_expected) const;
  void release(int parameter, std::vector<int>& released);
  bool make_room(std::int64_t elements, bool also_expected, std::vector<int>& released);
  void gather(int parameter, Changes& changes);

  std::int64_t most_elements_;
  std::vector<Parameter> parameters_;
  std::vector<int> order_; // of the step before
  std::vector<int> learning_;
  std::size_t next_ = 0; // position in order_ behind the last read
  std::vector<int> expected_;
  std::int64_t reads_ = 0;
  std::int64_t live_elements_ = 0;
  std::int64_t highest_elements_ = 0;
};

} // namespace tessera::sharding
