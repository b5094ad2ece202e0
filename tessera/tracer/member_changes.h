#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/tracer/object_bytes.h"

namespace tessera::tracer {

/// A module whose members are watched.
struct WatchedModule {
  const torch::nn::Module* module = nullptr;
  std::string path; // empty for a root
  std::string name; // for messages: "'encoder.cell' (Cell)", "the model (Net)" for a root
};

/// Returns the root and the modules below it whose object's size is known
/// (nn/module/marks.h), without this library's own layers, which keep no state between calls.
std::vector<WatchedModule> watched_modules(const torch::nn::Module& root);

/// Finds modules whose members a step has changed. It costs less than StateWatch and sees less: not
/// a member that is put back before the step ends, nor what operators write into a tensor. It must
/// not outlive the roots. Not collective. Threads: any.
class MemberChanges {
 public:
  explicit MemberChanges(const std::vector<torch::nn::Module*>& roots);

  /// Returns the names of the modules whose members have changed since the construction.
  std::vector<std::string> found() const;

 private:
  struct Watched {
    std::string name;
    ObjectBytes before;
  };
  std::vector<Watched> watched_;
};

} // namespace tessera::tracer
