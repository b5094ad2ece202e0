#pragma once

#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"

// What every mesh must do, written once. A case is a function that all ranks of
// a mesh run; unit tests run it on threads of one process, MPI tests on
// processes. It throws on the rank on which something is wrong; why, is said in
// tests/unit/comm/conformance.h.
namespace tessera::nn::summa::cases {

struct Case {
  const char* name;
  void (*run)(const MeshPtr& mesh);
};

/// Products and their gradients.
const std::vector<Case>& product_cases();
/// Layers against torch's.
const std::vector<Case>& layer_cases();
const std::vector<Case>& few_rows_cases();
const std::vector<Case>& transformer_cases();
const std::vector<Case>& option_cases();
/// Managed memory.
const std::vector<Case>& managed_cases();
/// A language model: its loss without whole logits.
const std::vector<Case>& head_cases();
/// All but those of managed memory.
std::vector<Case> cases_of_values();
/// All of them.
std::vector<Case> all_cases();

/// Numbers that are equal on all ranks; ranks that are threads share torch's
/// own generator.
class Random {
 public:
  explicit Random(std::uint64_t seed);
  at::Tensor normal(at::IntArrayRef sizes);
  at::Tensor integers(std::int64_t end, at::IntArrayRef sizes);

 private:
  at::Generator generator_;
};

/// Throws std::runtime_error with the text unless `condition`.
void require(bool condition, const std::string& text);

/// Throws unless |found - expected| <= tolerance * max(1, |expected|) in every
/// element (largest of `expected`'s).
void require_close(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance,
    const std::string& what);

/// This rank's block of a whole matrix.
at::Tensor
block_of(const Mesh& mesh, const at::Tensor& full, const Blocks& rows, const Blocks& columns);

} // namespace tessera::nn::summa::cases
