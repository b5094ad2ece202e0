#pragma once

namespace tessera::models {

// Each registers what replaces a family's modules under tensor parallelism. It is called once, from
// the source of the family itself, so that a program which uses the family has them.

/// Of BERT as a whole on a mesh, and of its layers (bert_distributed.h).
bool register_bert_distributed();
/// Of the blocks of a decoder; its embeddings and its output layer stay as they are.
bool register_decoder_distributed();
/// Of T5's blocks and layers.
bool register_t5_distributed();

} // namespace tessera::models
