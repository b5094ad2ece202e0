#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/record_function.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/profiler/util.h>

namespace tessera::testing {

/// Counts the scalar multiplications of the matrix products that this thread runs while the object
/// lives, by the sizes of the operands of every product that libtorch dispatches. One object a
/// thread at a time.
class Multiplications {
 public:
  Multiplications()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&look).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    count() = 0;
  }
  ~Multiplications() {
    at::removeCallback(handle_);
  }
  Multiplications(const Multiplications&) = delete;
  Multiplications& operator=(const Multiplications&) = delete;

  /// Returns those since the last call, or since the beginning.
  std::int64_t take() {
    const std::int64_t found = count();
    count() = 0;
    return found;
  }

  /// Returns the place of the first factor among the arguments of an operator that multiplies two
  /// matrices, or two lists of them; -1 for any other.
  static int first_factor(std::string_view name) {
    if (name == "aten::mm" || name == "aten::bmm") {
      return 0;
    }
    return name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm" ||
                   name == "aten::baddbmm_"
               ? 1
               : -1;
  }

 private:
  static std::int64_t& count() {
    thread_local std::int64_t multiplications = 0;
    return multiplications;
  }
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& call) {
    const int first = first_factor(call.name());
    if (first >= 0) {
      // libtorch reads the arguments itself: RecordFunction::inputs() fails in a program that is
      // built with other assertions than libtorch.
      const auto sizes = torch::profiler::impl::inputSizes(call);
      const auto at = static_cast<std::size_t>(first);
      // [.., m, k] times [.., k, n]: m k n, once for each matrix of a list.
      count() += c10::multiply_integers(sizes[at]) * sizes[at + 1].back();
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

} // namespace tessera::testing
