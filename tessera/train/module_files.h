#pragma once

#include <string>

#include "tessera/train/model.h"

/// A model's state in the file that a plain libtorch script uses. After the partition a rank holds
/// its own tensors only, so torch::save of the module would write the others empty.
namespace tessera {

/// Writes the whole model's parameters and buffers to one file, which a script without this library
/// reads with `torch::load(net, path)`: the format of `torch::save(net, path)` for the modules as
/// the script made them, also where tensor parallelism replaced some. World rank 0 gathers the
/// tensors on its host and writes; the file takes its name when it is complete.
///
/// What a module's own override of `torch::nn::Module::save` would write besides is not in it.
/// Collective over the world. Threads: step thread only.
/// Throws: ConfigError before the partition where modules were replaced or delayed; CheckpointError
/// on every rank when the file cannot be written.
void save_module(const Model& model, const std::string& path);

/// Takes the parameters and buffers of a file written by `save_module` or by `torch::save(net,
/// path)`; every rank reads the file and keeps its part: now, or right after the partition when
/// there is none yet. Values are converted to the model's types.
///
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank when a rank cannot read the file, and, listing every name
/// and shape that does not fit, when it is another model's: in the first step where the model is
/// not partitioned yet. The model is as it was then.
void load_module(const Model& model, const std::string& path);

} // namespace tessera
