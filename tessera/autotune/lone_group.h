#pragma once

#include <string>

#include "tessera/comm/process_group.h"

namespace tessera::autotune {

/// The first rank of a group whose other ranks do not exist: enough to shape
/// the part of a distributed model that a rank would hold. Its collectives
/// throw InternalError. Threads: any.
class LoneGroup : public comm::ProcessGroup {
 public:
  explicit LoneGroup(int size);

  void abandon(const std::string& why) override;
  void recover() override;

 protected:
  comm::WorkPtr start(Call call) override;
};

} // namespace tessera::autotune
