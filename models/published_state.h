#pragma once

namespace tessera::models {

/// Lets `load_state_dict` of a distributed Gpt, Decoder, Bert, Roberta or T5 take a state as their
/// published files have it: without the name of the root, tied weights once, with constant masks
/// (load.h). make_model calls it; a script that builds these classes itself calls it before it
/// distributes the model. Harmless to repeat. Not collective; every rank calls it.
void take_published_states();

} // namespace tessera::models
