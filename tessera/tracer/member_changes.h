#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/tracer/object_bytes.h"

namespace tessera::tracer {

struct WatchedModule {
  const torch::nn::Module* module = nullptr;
  std::string path; // empty for a root
  std::string name; // for messages: "'encoder.cell' (Cell)", "the model (Net)" for a root
};

/// The root and the modules below it whose object's size is known (nn/module/object_size.h), less
/// this library's own layers, which keep nothing that a call needs of the one before.
std::vector<WatchedModule> watched_modules(const torch::nn::Module& root);

/// Finds modules that a step left with other members than it began with. Cheaper and blinder than
/// StateWatch: a member that is put back before the step ends, and what operators write into a
/// tensor, are not seen. Must not outlive the roots. Not collective. Threads: any.
class MemberChanges {
 public:
  explicit MemberChanges(const std::vector<torch::nn::Module*>& roots);

  /// Names of the modules whose members are others now.
  std::vector<std::string> found() const;

 private:
  struct Watched {
    std::string name;
    ObjectBytes before;
  };
  std::vector<Watched> watched_;
};

} // namespace tessera::tracer
