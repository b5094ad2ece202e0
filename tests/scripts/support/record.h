#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

/// What a script found, one line each, written to `$SCRIPT_RECORD.<rank>` for comparison:
///
///     loss 2.302585
///     tensor prediction 4,10 0.1 0.2 ...
///     owned 1234
///
/// Threads: the script's only.
namespace record {

inline std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

inline std::string rank() {
  return environment("OMPI_COMM_WORLD_RANK", "0");
}

/// A path for a file of the script's own, the same on every rank.
inline std::string scratch(const std::string& name) {
  return environment("SCRIPT_RECORD", "record") + "." + name;
}

inline std::FILE* file() {
  static std::FILE* const opened = std::fopen(scratch(rank()).c_str(), "w");
  TORCH_CHECK(opened != nullptr, "cannot write ", scratch(rank()));
  return opened;
}

inline void loss(double value) {
  std::fprintf(file(), "loss %.9g\n", value);
}

inline void tensor(const std::string& name, const torch::Tensor& value) {
  const torch::Tensor numbers = value.detach().to(torch::kDouble).contiguous();
  std::fprintf(file(), "tensor %s ", name.c_str());
  for (const std::int64_t size : value.sizes()) {
    std::fprintf(file(), "%" PRId64 ",", size);
  }
  const double* data = numbers.data_ptr<double>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    std::fprintf(file(), " %.9g", data[i]);
  }
  std::fprintf(file(), "\n");
}

/// Parameters and buffers by name.
inline void state(const torch::nn::Module& module, const std::string& prefix = "") {
  for (const auto& item : module.named_parameters()) {
    tensor(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tensor(prefix + item.key(), item.value());
  }
}

/// The same of a state that was gathered, any range of pairs of name and tensor.
template <typename State>
void gathered(const State& state, const std::string& prefix = "") {
  for (const auto& [name, value] : state) {
    tensor(prefix + name, value);
  }
}

/// How many numbers this rank's parameters have.
template <typename Parameters>
void owned(const Parameters& parameters) {
  std::int64_t count = 0;
  for (const auto& [name, value] : parameters) {
    count += value.numel();
  }
  std::fprintf(file(), "owned %" PRId64 "\n", count);
}

} // namespace record
