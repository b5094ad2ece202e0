#include "tessera/autotune/lone_group.h"

#include <numeric>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::autotune {

namespace {

comm::GroupInfo first_ranks(int size) {
  comm::GroupInfo info;
  info.name = "lone";
  info.ranks.resize(static_cast<std::size_t>(size));
  std::iota(info.ranks.begin(), info.ranks.end(), 0);
  return info;
}

[[noreturn]] void refuse(std::string_view operation) {
  throw InternalError(str(operation, " was started although only shapes are followed"));
}

} // namespace

LoneGroup::LoneGroup(int size) : ProcessGroup(first_ranks(size), c10::kMeta) {}

comm::WorkPtr LoneGroup::start(Call call) {
  refuse(name_of(call.operation.kind));
}
void LoneGroup::abandon(const std::string& /*why*/) {
  refuse("abandon");
}
void LoneGroup::recover() {
  refuse("recover");
}

} // namespace tessera::autotune
