#pragma once

#include <cstdint>

#include "tessera/graph/model_graph.h"

namespace tessera::partitioning {

/// Hyperparameters of a T5 and what one traced pass sees.
/// Source: Raffel et al. 2020, section 3.7 (11B) and 3.1.4 (lengths).
struct T5Shape {
  int layers = 24; // encoder, and as many decoder layers
  std::int64_t d_model = 1024;
  std::int64_t d_ff = 65536;
  std::int64_t heads = 128;
  std::int64_t d_kv = 128;
  std::int64_t vocabulary = 32128;
  std::int64_t encoder_length = 512;
  std::int64_t decoder_length = 114;
  std::int64_t samples = 1;
  bool dropout_modules = false; // whether dropouts are modules of the tree
};

/// The module tree of a T5 down to its linear layers, in float32, as an untimed
/// trace on a CPU gives it. Every module's activations are what it returns;
/// attention scores are inside the attention module and not counted. The
/// embedding's weight is that of lm_head.
graph::ModelGraph t5_graph(const T5Shape& shape = {});

} // namespace tessera::partitioning
