#pragma once

#include <functional>

#include "tessera/tensor/named_tensors.h"

// What ranks do together before a state is loaded.
namespace tessera::train {

/// The kinds of state dictionaries (model.h, kPartialMarker).
enum class StateKind {
  kWhole, // perhaps in the form of another program
  kWholeAsNamed, // under the model's names, said so
  kPart // of this rank
};

/// Returns the kind of a state by the tensor under `marker`, which is taken out of it. Not
/// collective.
StateKind take_kind(TensorMap& state, const char* marker);

/// Checks that all ranks have the same kind. Collective over the world.
/// Throws: CheckpointError on every rank where kinds differ.
void agree_on_kind(StateKind kind);

/// Runs `work`, then throws the CheckpointError of the first rank that met one on every rank, so
/// that none waits for the others in what follows. Collective over the world.
void agree_on_error(const std::function<void()>& work);

/// Returns the parts of all pipeline ranks as one: of one place in the TP_GROUP, since names of
/// distributed tensors stand for another shard on each of its ranks. Collective over the PP_GROUP.
/// Throws: CheckpointError where a name is in two parts whose contents differ.
TensorMap joined_over_pipeline(const TensorMap& part);

} // namespace tessera::train
