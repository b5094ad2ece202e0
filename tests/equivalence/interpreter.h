#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/nn/module/containers.h"

#include "models/gpt.h"
#include "tests/equivalence/program.h"

/// The one module class of the random trees, and calls of it.
namespace tessera::equivalence {

/// What a program works on; see Instruction.
struct Pool {
  std::vector<torch::Tensor> floats;
  std::vector<torch::Tensor> integers;
  std::vector<torch::Tensor> masks;
};

using Bundle = std::map<std::string, std::vector<torch::Tensor>>;
using Pair = std::pair<torch::Tensor, torch::Tensor>;

class ProgramImpl;

struct HeldChild;

/// Runs its ModuleProgram, whichever `forward` it is called by.
class ProgramImpl : public torch::nn::Module {
 public:
  using Modules = std::vector<std::shared_ptr<ProgramImpl>>;

  /// `modules` are those made before, which this one may hold.
  ProgramImpl(
      std::shared_ptr<const Tree> tree,
      int index,
      const Modules& modules,
      const Build& build);

  torch::Tensor forward(const torch::Tensor& x);
  std::tuple<torch::Tensor, Pair, Pair>
  forward(const torch::Tensor& x, torch::Tensor y, const torch::Tensor& ids);
  std::tuple<Bundle, std::optional<torch::Tensor>, std::vector<std::optional<torch::Tensor>>>
  forward(const Bundle& in, double scale, std::optional<torch::Tensor> extra);
  c10::IValue forward(const c10::IValue& in);
  std::vector<std::pair<torch::Tensor, std::map<std::string, torch::Tensor>>> forward(
      std::vector<torch::Tensor> in,
      const std::array<int, 2>& numbers);
  /// Only has an effect, on buffers.
  void forward(const torch::Tensor& x, bool update);

 private:
  struct Results {
    std::vector<torch::Tensor> floats;
    torch::Tensor integers;
    torch::Tensor mask;
  };
  Results run(Pool pool);
  void run(const std::vector<Instruction>& code, Pool& pool);
  void compute(const Instruction& one, Pool& pool);
  void call(const Instruction& one, Pool& pool);
  void branch(const Instruction& one, Pool& pool);
  torch::Tensor call_layer(HeldChild& child, const Instruction& one, const torch::Tensor& x) const;
  void update_buffers(const torch::Tensor& x);

  std::shared_ptr<const Tree> tree_;
  const ModuleProgram& program_;
  bool recomputes_calls_;
  std::vector<std::shared_ptr<HeldChild>> children_;
  torch::Tensor weight_, table_, shift_, total_, calls_;
};
TESSERA_MODULE(Program);

struct HeldChild {
  Program program{nullptr};
  nn::Linear linear{nullptr};
  nn::Sequential sequence{nullptr};
  torch::nn::Linear part{nullptr};
  nn::Embedding embedding{nullptr};
  models::GptBlock block{nullptr};
};

/// What a call of a program gives its caller.
struct Returned {
  std::vector<torch::Tensor> floats;
  torch::Tensor integers; // undefined where the signature has none
  torch::Tensor mask;
};

/// The root of a tree, made with torch's default random numbers.
Program make_program(std::shared_ptr<const Tree> tree, const Build& build);

std::vector<torch::Tensor> elements(const c10::IValue& list);
c10::IValue value_argument(
    const std::array<torch::Tensor, 3>& floats,
    const torch::Tensor& ids,
    const torch::Tensor& mask);
Returned from_value(const c10::IValue& value);

/// Calls `callee` (a Program or a DistributedModel of one) with arguments of
/// its signature made from three floats, integers and a number.
template <typename Callee>
Returned call_with(
    Callee& callee,
    Signature signature,
    const std::array<torch::Tensor, 3>& floats,
    const torch::Tensor& ids,
    int number) {
  switch (signature) {
    case Signature::kTensor:
      return {{callee(floats[0])}, {}, {}};
    case Signature::kTuple: {
      auto [first, second, third] = callee(floats[0], floats[1], ids);
      return {{first, second.first, third.second}, second.second, third.first};
    }
    case Signature::kBundle: {
      const Bundle bundle = {{"x", {floats[0], floats[1]}}, {"ids", {ids}}};
      std::optional<torch::Tensor> extra;
      if (number % 2 == 0) {
        extra = floats[2];
      }
      auto [out, mask, list] = callee(bundle, 0.1 * number, extra);
      auto values = out.at("out");
      values.push_back(list.at(0).value());
      TORCH_CHECK(!list.at(1) && out.at("none").empty());
      return {values, out.at("ids").at(0), mask ? *mask : torch::Tensor()};
    }
    case Signature::kValue:
      return from_value(callee(value_argument(floats, ids, ids > number)));
    case Signature::kList: {
      const std::vector<torch::Tensor> list(floats.begin(), floats.end());
      const auto out = callee(list, std::array<int, 2>{number, 7});
      TORCH_CHECK(out.at(1).second.empty());
      // Rows of none, and their gradient of none, travel too.
      const auto& named = out.at(0).second;
      return {
          {out.at(0).first, torch::cat({named.at("a"), named.at("empty")}), out.at(1).first},
          {},
          {}};
    }
  }
  return {};
}

} // namespace tessera::equivalence
