#pragma once

#include <string>

#include "tessera/comm/process_group.h"
#include "tessera/comm/recoverable_engine.h"

namespace tessera::comm {

/// A rank whose own code has failed between two collectives says so here, so
/// that peers which have gone on into the next one do not wait for it.
///
/// Each collective knows how many failures its rank had told of before it was
/// started. Where ranks differ in that, the group is *broken*: every operation
/// throws PeerFailed, on all ranks and within a fraction of a second, until all
/// have called `recover`. Ranks that all fail between the same two collectives
/// break nothing, and may go on.
class Recoverable {
 public:
  virtual ~Recoverable() = default;
  /// `why` names rank and cause. Not collective. Threads: any thread.
  virtual void abandon(const std::string& why) = 0;
  /// Brings all ranks to one point again, whatever each of them left undone,
  /// and forgets their failures. Waits for what runs on the group's thread.
  /// Collective over the group, after the ranks have agreed that a step failed.
  /// Throws: CommError when the group has failed for good, or a rank does not
  /// come within the group's timeout.
  virtual void recover() = 0;
};

/// Of a group that can; a group over MPI's messages cannot: there peers wait
/// for its timeout. As the members of Recoverable.
void abandon(ProcessGroup& group, const std::string& why);
void recover(ProcessGroup& group);

} // namespace tessera::comm
