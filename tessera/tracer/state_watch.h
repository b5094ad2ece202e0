#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tessera/nn/module/interceptor.h"
#include "tessera/tracer/member_changes.h"
#include "tessera/tracer/member_read.h"
#include "tessera/tracer/object_bytes.h"
#include "tessera/tracer/write_log.h"

namespace tessera::tracer {

/// Finds modules that keep state in a member which is no registered buffer: a tensor, a counter or
/// a list that one call leaves to the next, or one part of a forward to a later part. It compares
/// the objects of modules whose size is known (nn/module/marks.h): each around its calls and
/// whenever it calls a module or runs an operator, and all of them around the whole pass.
/// Threads: the thread of the trace.
class StateWatch : public nn::Interceptor {
 public:
  explicit StateWatch(const std::vector<torch::nn::Module*>& roots);

  /// Runs one pass, during which this is the innermost interceptor and passes every call on.
  /// Tensors that the pass changed in place are put back. Without `look` nothing is searched for.
  void observe(const std::function<c10::IValue()>& run, bool look);

  /// Runs an operator of the pass, as WriteLog::operate.
  void operate(
      const c10::OperatorHandle& op,
      torch::jit::Stack* stack,
      const std::function<void()>& run);

  /// Returns "'encoder.cell' (Cell)" for each module of this root that was found, "the model (Net)"
  /// for the root itself.
  std::vector<std::string> found(const torch::nn::Module& root) const;
  bool found_any() const {
    return !found_.empty();
  }
  /// Returns the members of modules below this root that others read, each pair of modules once.
  /// Tensors that a member holds in a container are not seen.
  std::vector<MemberRead> reads(const torch::nn::Module& root) const;

  /// Returns a hash of what the last pass with `look` computed: of the bits of every result of a
  /// watched call, and of what `run` returned.
  std::uint64_t outcome() const {
    return outcome_;
  }

  bool wants(const torch::nn::Module& module) override;
  int range_end(const torch::nn::Module& sequential, int first) override;
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override;

 private:
  struct Watched {
    const torch::nn::Module* module;
    ObjectBytes before; // at the start of a call of it, or of the pass
  };
  void look_at(const Watched& watched);
  void look_at_running();
  void look_for_reads(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  const torch::nn::Module* owner_of(const at::Tensor& tensor) const;
  void note(const torch::nn::Module* module);

  std::vector<torch::nn::Module*> roots_;
  std::unordered_map<const torch::nn::Module*, WatchedModule> names_; // of the watched modules
  WriteLog writes_;
  nn::Interceptor* outer_ = nullptr; // set while a pass runs
  bool looks_ = false;
  std::vector<Watched> at_start_; // roots first
  std::vector<Watched> path_; // the calls that run, innermost last
  std::vector<const torch::nn::Module*> found_; // in the order found
  struct Read {
    const torch::nn::Module* holder;
    const torch::nn::Module* reader; // nullptr: none of the watched modules
    std::string op;
  };
  std::vector<Read> reads_;
  // By module: arguments and results of its last call, which are no members of it alone.
  std::unordered_map<const torch::nn::Module*, std::unordered_set<const c10::TensorImpl*>> travel_;
  std::uint64_t outcome_ = 0;
};

/// Throws: UserError that names `modules`, whose state a tracing pass has changed.
[[noreturn]] void refuse_carried_state(const std::vector<std::string>& modules);

} // namespace tessera::tracer
