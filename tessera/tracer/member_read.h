#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::tracer {

/// A read of a tensor that the forward of another module keeps in a member, for instance by a loss
/// over attention weights. The tensor exists only on the rank where that forward runs.
struct MemberRead {
  std::string holder; // path
  std::string reader; // path; empty: the forward of the model, or the step function
  std::string name; // of the holder, for messages
  std::string op; // the first operator that reads it
};

/// Checks that readers are on the rank of the holder. `partition` maps paths to ranks; a path
/// without an entry is on the rank of its parent, the root on 0. Throws: UserError naming both.
void check_member_reads(
    const std::vector<MemberRead>& reads,
    const std::map<std::string, int>& partition);

} // namespace tessera::tracer
