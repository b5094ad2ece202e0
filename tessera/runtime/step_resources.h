#pragma once

#include "tessera/runtime/buffer_order.h"
#include "tessera/runtime/script_stream.h"
#include "tessera/runtime/server_context.h"
#include "tessera/runtime/step_control.h"
#include "tessera/runtime/step_tasks.h"

namespace tessera::runtime {

/// What the parts of a step are made from; all outlive them.
struct StepResources {
  const ServerContext& context;
  const StepWork& work;
  StepTasks& tasks;
  StepControl& control;
  ScriptStream* script_stream = nullptr; // nullptr: tasks have streams of their own
  BufferOrder* buffer_order = nullptr; // nullptr: changes of buffers have no order
};

} // namespace tessera::runtime
