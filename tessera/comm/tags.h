#pragma once

namespace tessera::comm {

/// Tags of World::send from here on are the library's own; those of users are below. All tags of
/// the library are listed here, so that no two uses share one.
inline constexpr int kFirstOwnTag = 1 << 24;
inline constexpr int kObjectCollectiveTag = kFirstOwnTag;
inline constexpr int kGroupSetupTag = kFirstOwnTag + 1;
inline constexpr int kTransportSetupTag = kFirstOwnTag + 2;

} // namespace tessera::comm
