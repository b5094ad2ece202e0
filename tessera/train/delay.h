#pragma once

#include "tessera/deferred_init/delayed_init.h"

namespace tessera {

/// Modules built in this scope get no memory for their parameters until the
/// first step has decided where they live; each rank then fills only its own,
/// with the values its seed gives. For models that do not fit into one process.
/// Source: Karakus et al. 2021, appendix I.5.
using delay_param_initialization = tracer::DelayedInitScope;

} // namespace tessera
