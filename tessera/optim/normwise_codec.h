#pragma once

// Lamb and NovoGrad between updates and checkpoints; private to this folder.
namespace tessera::optim {

/// Makes the states of both known to checkpoints, by parameter. Harmless to repeat. Threads: any.
void register_normwise_states();

} // namespace tessera::optim
