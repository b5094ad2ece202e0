#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::tracer {

/// Code that reads a tensor which the forward of another module keeps in a member: a loss over
/// attention weights. It finds the tensor only on the rank where that forward runs.
struct MemberRead {
  std::string holder; // path
  std::string reader; // path; empty: the forward of the model, or the step function
  std::string name; // of the holder, for messages
  std::string op; // what reads it first
};

/// Throws: UserError for a reader that is on another rank than the holder. `partition`: rank by
/// path, a path without entry is on the rank of the one above, the root on 0.
void check_member_reads(
    const std::vector<MemberRead>& reads,
    const std::map<std::string, int>& partition);

} // namespace tessera::tracer
