#include "tessera/comm/share_activity.h"

#include <memory>
#include <utility>

#include "tessera/diagnostics/activity_board.h"
#include "tessera/diagnostics/crash_report.h"

namespace tessera::comm {

void share_activity(World& world, const ProcessGroup& everybody) {
  auto board = std::make_unique<diagnostics::ActivityBoard>(world.rank());
  const auto addresses = all_gather_object(world, everybody, board->address().to_numbers());
  const auto& hosts = world.hosts();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != world.rank() && hosts[rank] == hosts[world.rank()]) {
      board->add(
          rank, hosts[rank], ipc::SegmentAddress::from_numbers(addresses[rank].toIntVector()));
    }
  }
  // No rank closes its page before all have mapped it.
  all_gather_object(world, everybody, world.rank());
  diagnostics::report_deaths_on_sigterm();
  diagnostics::ActivityBoard::publish(std::move(board));
}

} // namespace tessera::comm
