#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/diagnostics/activity_page.h"
#include "tessera/diagnostics/process_watch.h"
#include "tessera/ipc/segment.h"

namespace tessera::diagnostics {

/// The page of this rank and those of the other ranks of its node.
/// Threads: one thread until it is published, then any thread and signal handlers.
class ActivityBoard {
 public:
  struct Neighbour {
    int rank = -1;
    std::string host;
    std::unique_ptr<ProcessWatch> process;
    ipc::Segment memory;

    ActivityPage& page() const noexcept {
      return *reinterpret_cast<ActivityPage*>(memory.data());
    }
  };

  /// Makes this rank's page. Throws: CommError.
  explicit ActivityBoard(int rank);

  ipc::SegmentAddress address() const {
    return own_.address();
  }
  /// Maps the page of another rank. One that cannot be mapped is left out: the host may be another
  /// one of the same name, or there are walls between processes.
  void add(int rank, const std::string& host, const ipc::SegmentAddress& address);

  ActivityPage& page() const noexcept {
    return *reinterpret_cast<ActivityPage*>(own_.data());
  }
  int rank() const noexcept {
    return rank_;
  }
  const std::vector<Neighbour>& neighbours() const noexcept {
    return neighbours_;
  }
  const Neighbour* find(int rank) const noexcept;
  /// The page of the node's first rank, where all its ranks look.
  ActivityPage& first_page() const noexcept;

  /// The board of this process; nullptr before `publish`.
  static const ActivityBoard* published() noexcept;
  /// The own page of the published board; nullptr without one.
  static ActivityPage* own_page() noexcept;
  /// Makes `board` the one that all functions of this room use, and ends the one before. No thread
  /// may use that one any more; the last lives as long as the process.
  static void publish(std::unique_ptr<ActivityBoard> board);

 private:
  int rank_;
  ipc::Segment own_;
  std::vector<Neighbour> neighbours_;
};

} // namespace tessera::diagnostics
