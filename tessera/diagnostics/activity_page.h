#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera::diagnostics {

/// A collective that runs.
struct ShownOperation {
  std::atomic<std::uint32_t> valid{0}; // 1: kind and group are valid; 2: being written
  /// The rank that it has waited for longer than usual; -1: none.
  std::atomic<std::int32_t> awaited{-1};
  std::atomic<std::uint64_t> number{0}; // of those shown here, by which it is known again
  std::array<char, 24> kind{};
  std::array<char, 48> group{};
};

/// The present activity of a rank, in shared memory that only this rank writes. A reader may
/// see a text half replaced by the next one: it is for people, after something
/// went wrong.
struct ActivityPage {
  enum class State : std::int32_t { kScript, kRuns, kWaits, kServes };

  static constexpr std::uint32_t kProgramEnded = 2;

  /// Not 0: the rank's end needs no report; kProgramEnded: its program has returned from `main`.
  std::atomic<std::uint32_t> left{0};
  std::atomic<std::uint32_t> death_reported{0};
  /// Of the node's first rank: 1 once a rank reports a failure, 2 when it has.
  std::atomic<std::uint32_t> failure{0};
  State state = State::kScript;
  std::int32_t microbatch = -1;
  std::int32_t backward = 0;
  std::int32_t target_rank = -1;
  std::int64_t step = -1;
  std::array<char, 128> module{};
  std::array<char, 128> target{};
  /// What the script's thread is in, and the first of what other threads are in.
  ShownOperation of_script;
  ShownOperation of_others;
};

/// Copies what fits of `text`, with a zero behind it.
template <std::size_t N>
void copy_text(std::array<char, N>& into, std::string_view text) noexcept {
  const std::size_t length = text.copy(into.data(), N - 1);
  into[length] = '\0';
}

/// A line of text that is built without allocation, so that a signal handler can use it.
class Line {
 public:
  Line& add(std::string_view text) noexcept {
    used_ += text.copy(text_.data() + used_, text_.size() - used_);
    return *this;
  }
  template <std::size_t N>
  Line& add(const std::array<char, N>& text) noexcept {
    return add(std::string_view(text.data(), ::strnlen(text.data(), N)));
  }
  Line& add(std::int64_t number) noexcept;
  std::string_view text() const noexcept {
    return {text_.data(), used_};
  }

 private:
  std::array<char, 768> text_{};
  std::size_t used_ = 0;
};

/// Adds "step 2, module 'h.3', microbatch 1, forward; in all_reduce of group 'dp'".
/// Threads: any thread, and signal handlers.
void describe(const ActivityPage& page, Line& line) noexcept;

} // namespace tessera::diagnostics
