#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera::tracer {

/// Saves what a forward may change and restores it in the destructor: buffers, and the random state
/// of the devices. Parameters are not copied, since they may fill the memory; their version
/// counters are checked. Threads: the thread of the forward.
class ModelState {
 public:
  ModelState(torch::nn::Module& root, const std::vector<at::Device>& devices);
  ~ModelState();
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  /// Throws: ConfigError that names a parameter that was changed in place.
  void check_parameters() const;

  /// Returns the names of buffers of floating-point numbers that are no longer what they were.
  std::vector<std::string> changed_buffers() const;

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    std::int64_t version;
  };
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    at::Tensor saved; // a copy
  };
  std::vector<Buffer> buffers_;
  std::vector<Parameter> parameters_;
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
};

} // namespace tessera::tracer
