#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/operations/capture/program.h"

namespace tessera::operations {

/// A part whose operators were looked up. Not collective. Threads: any, one at a time.
class Replay {
 public:
  /// Throws: PlanError for an operator that this program does not have.
  explicit Replay(Part part);

  const Part& part() const {
    return part_;
  }

  /// Runs the operators under the thread's own modes, on `taken` in the order of Part::takes, and
  /// returns what Part::gives lists. `seconds`, if given, gets the wall time of every call.
  /// Throws: UserError for a result of another shape than was recorded, which then depends on
  /// numbers; what operators throw, with the operation's name.
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& taken,
      const std::function<at::Tensor(const std::string&)>& variable,
      std::vector<double>* seconds = nullptr) const;

 private:
  Part part_;
  int values_ = 0; // one past the greatest number
  std::vector<c10::OperatorHandle> operators_;
  std::vector<std::vector<int>> last_use_; // by call: values that nothing needs afterwards
  std::vector<const std::vector<std::int64_t>*> sizes_; // by value; nullptr: made elsewhere
};

} // namespace tessera::operations
