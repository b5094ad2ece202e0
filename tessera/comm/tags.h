#pragma once

namespace tessera::comm {

/// Tags of World::send from here on are the library's own; users' are 0 to this. All of the
/// library's stand here, so that no two uses share one.
inline constexpr int kFirstOwnTag = 1 << 24;
inline constexpr int kObjectCollectiveTag = kFirstOwnTag;
inline constexpr int kGroupSetupTag = kFirstOwnTag + 1;
inline constexpr int kTransportSetupTag = kFirstOwnTag + 2;

} // namespace tessera::comm
