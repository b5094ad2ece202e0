#include "tessera/comm/recoverable.h"

namespace tessera::comm {

void abandon(ProcessGroup& group, const std::string& why) {
  if (auto* recoverable = dynamic_cast<Recoverable*>(&group)) {
    recoverable->abandon(why);
  }
}

void recover(ProcessGroup& group) {
  if (auto* recoverable = dynamic_cast<Recoverable*>(&group)) {
    recoverable->recover();
  }
}

} // namespace tessera::comm
