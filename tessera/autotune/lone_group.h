#pragma once

#include <string>

#include "tessera/comm/process_group.h"

namespace tessera::autotune {

/// A group as its first rank sees it, whose other ranks do not exist. It is enough to
/// trace, by shapes alone, the part of a distributed model that one rank would hold.
/// All its collectives, abandon and recover throw InternalError. Threads: any.
class LoneGroup : public comm::ProcessGroup {
 public:
  explicit LoneGroup(int size);

  void abandon(const std::string& why) override;
  void recover() override;

 protected:
  comm::WorkPtr start(Call call) override;
};

} // namespace tessera::autotune
