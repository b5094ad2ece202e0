#pragma once

/// The one header of a training script.
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/primitives.h"
#include "tessera/nn/replace/registry.h"
#include "tessera/optim/lbfgs.h"
#include "tessera/optim/learning_rate.h"
#include "tessera/train/checkpoints.h"
#include "tessera/train/distributed_model.h"
#include "tessera/train/module_files.h"
#include "tessera/train/objects.h"
#include "tessera/train/optimizer.h"
#include "tessera/train/parameter_function.h"
#include "tessera/train/session.h"
#include "tessera/train/step.h"
