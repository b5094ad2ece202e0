#pragma once

#include "tessera/comm/world.h"

namespace tessera::comm {

/// Makes the activity page of this rank (tessera/diagnostics/activity.h) and maps those of its
/// node; a page that cannot be mapped is left out. From then on SIGTERM reports which rank of the
/// node has died.
/// Collective over the world, of which `everybody` is the group. Threads: step thread only.
void share_activity(World& world, const ProcessGroup& everybody);

} // namespace tessera::comm
