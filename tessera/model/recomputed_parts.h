#pragma once

#include "tessera/runtime/module_table.h"

namespace tessera::model {

/// Tells the modules whose calls are recomputed their paths, and looks whether each lies on one
/// pipeline rank with all its submodules: a module as a whole, a Sequential child by child.
/// `automatic`: nobody chose the partition, so a module that does not is warned of and runs without
/// recomputation. Every rank decides alike. Not collective.
/// Throws: PlanError naming the module and both ranks when the partition was written by hand.
void check_recomputed_parts(const runtime::ModuleTable& table, bool automatic);

} // namespace tessera::model
