#pragma once

#include <exception>
#include <string>

#include "tessera/base/error.h"
#include "tessera/diagnostics/error_message.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/protocol.h"

namespace tessera::runtime {

/// Reports a failure on another rank of the pipeline; its text names the origin.
class FailedElsewhere : public UserError {
 public:
  using UserError::UserError;
};

/// "rank 2, module 'h.3', microbatch 1, forward: <message>"; an error that
/// came from another rank keeps its own origin.
/// Threads: any thread. Not collective.
std::string error_text(const std::exception_ptr& error, int rank, const std::string& where);

using diagnostics::message_of;
using diagnostics::origin_of; // the rank that a text of `error_text` names

/// "module 'h.3', microbatch 1, forward": what a task does.
std::string task_text(const Fields& fields, const ModuleDirectory& modules);

} // namespace tessera::runtime
