#pragma once

namespace tessera::models {

/// Registers the distributed forms of T5's blocks and layers. Once, by t5.cpp.
bool register_t5_distributed();

} // namespace tessera::models
