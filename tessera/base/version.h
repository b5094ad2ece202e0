#pragma once

namespace tessera {

/// The version of the library that a program is linked with, "0.1.0": major, minor, patch.
/// Not collective. Threads: any.
const char* version();

} // namespace tessera
