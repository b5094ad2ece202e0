#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::form {

/// Where a value stands in a file: a chain on the stack, so that a path becomes text only when it
/// is reported.
class Place {
 public:
  Place() = default;
  Place(const Place& parent, std::string_view key) : parent_(&parent), key_(key) {}
  Place(const Place& parent, std::size_t index) : parent_(&parent), index_(index) {}

  /// "modules[1].calls"; "" for the whole file.
  std::string text() const;

 private:
  const Place* parent_ = nullptr;
  std::string_view key_;
  std::size_t index_ = 0;
};

/// How messages are worded: `'layers[0].kind' must be a text, found 3` for files that programs
/// write, `layers[0].kind: found 3; write a text` for those that people write.
enum class Wording { kMust, kWrite };

/// What is wrong with a file. The first fault is thrown, or all are gathered so that a user mends a
/// file in one go.
class Faults {
 public:
  enum class Mode { kThrowFirst, kGather };

  /// `root` begins every message that is thrown.
  explicit Faults(std::string root, Wording wording = Wording::kMust, Mode mode = Mode::kThrowFirst)
      : root_(std::move(root)), wording_(wording), mode_(mode) {}

  void wrong(const Place& at, const OrderedJson& found, const std::string& allowed);
  void missing(const Place& at);
  void unknown(const Place& object, const std::string& key, const std::vector<std::string>& known);
  void other_version(const Place& at, const OrderedJson& found, int known);
  /// Fields of the object that contradict each other.
  void broken(const Place& object, const std::string& what);
  /// Throws: Error in mode kThrowFirst.
  void add(std::string message);

  bool gathers() const {
    return mode_ == Mode::kGather;
  }
  const std::vector<std::string>& messages() const {
    return messages_;
  }

 private:
  std::string root_;
  Wording wording_;
  Mode mode_;
  std::vector<std::string> messages_;
};

} // namespace tessera::form
