#pragma once

namespace tessera::models {

/// Registers what replaces a decoder's blocks under tensor parallelism, each by
/// itself: embeddings and output layer stay as they are.
bool register_decoder_distributed();

} // namespace tessera::models
