#pragma once

#include "tessera/sharding/divided_parameters.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/tensor/named_tensors.h"

/// States of a model whose parameters are divided over shard groups, to whole ones and back. Whole
/// states fit any division of the model.
namespace tessera::state {

/// Every part by its whole tensor; a 16-bit parameter's part may be its f32 master. With `keep`
/// false the results of this rank are left empty, one at a time. Collective over the shard group.
NamedTensors
whole_tensors(const sharding::DividedParameters& divided, NamedTensors parts, bool keep);
/// The same for fields of an optimizer's state that are as long as their parameter's part.
OptimizerState
whole_state(const sharding::DividedParameters& divided, OptimizerState parts, bool keep);
/// This rank's parts of fields that have their parameter's shape. Not collective.
OptimizerState part_state(const sharding::DividedParameters& divided, OptimizerState whole);

} // namespace tessera::state
