#pragma once

#include "tessera/nn/module/module.h"

namespace tessera::nn {

/// The documentation's name for a layer norm of one kernel; here libtorch's.
using FusedLayerNorm = LayerNorm;

} // namespace tessera::nn
