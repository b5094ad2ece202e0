// Which structs are taken apart into fields, and which are not.
#include "tessera/tensor/aggregate.h"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::detail {
namespace {

using torch::Tensor;

struct One {
  Tensor x;
};
struct WithDefault {
  Tensor x, y;
  int count = 3;
};
struct Twelve {
  WithDefault nested;
  std::vector<Tensor> list;
  std::string text;
  std::optional<Tensor> maybe;
  c10::optional<Tensor> torch_maybe;
  std::map<std::string, Tensor> named;
  std::array<int, 3> sizes;
  std::tuple<Tensor, int> both;
  double number;
  bool flag;
  std::pair<One, One> pair;
  c10::IValue any;
};
struct TorchTypes {
  at::TensorOptions options;
  c10::Device device;
  at::ScalarType dtype;
  at::Scalar scalar;
  torch::nn::utils::rnn::PackedSequence packed;
  torch::nn::ASMoutput adaptive;
  c10::optional<std::tuple<Tensor, Tensor>> state;
  torch::nn::EmbeddingBagMode mode;
  torch::OrderedDict<std::string, Tensor> dict;
};
struct Recursive {
  Tensor word;
  std::vector<Recursive> children;
};
struct Others {
  std::variant<int, std::string> variant;
  std::unique_ptr<int> owner;
  void* pointer;
  std::function<void()> function;
};
static_assert(kFieldCount<One> == 1 && kFieldCount<WithDefault> == 3 && kFieldCount<Twelve> == 12);
static_assert(kFieldCount<TorchTypes> == 9 && kFieldCount<Recursive> == 2);
static_assert(kFieldCount<Others> == 4);
static_assert(std::is_same_v<FieldTypes<WithDefault>, std::tuple<Tensor, Tensor, int>>);
static_assert(std::is_same_v<std::tuple_element_t<10, FieldTypes<Twelve>>, std::pair<One, One>>);

struct Thirteen {
  int a, b, c, d, e, f, g, h, i, j, k, l, m;
};
struct ArrayFirst {
  int sizes[3];
  Tensor x;
};
struct ArrayOfStructs {
  Tensor x;
  WithDefault pair[2];
  Tensor y;
};
struct Derived : One {
  Tensor y;
};
struct Reference {
  Tensor x;
  Tensor& y;
};
struct Constructor {
  Tensor x;
  explicit Constructor(Tensor value) : x(std::move(value)) {}
};
class Private {
  [[maybe_unused]] Tensor x_;
};
struct Empty {};
static_assert(!PlainStruct<Thirteen> && !PlainStruct<ArrayFirst> && !PlainStruct<ArrayOfStructs>);
static_assert(!PlainStruct<Derived> && !PlainStruct<Reference> && !PlainStruct<Constructor>);
static_assert(!PlainStruct<Private> && !PlainStruct<Empty> && !PlainStruct<int>);
static_assert(!PlainStruct<std::array<int, 1>> && !PlainStruct<std::array<int, 2>>);
static_assert(!PlainStruct<std::string> && !PlainStruct<std::vector<int>> && !PlainStruct<Tensor>);

TEST(PlainStruct, FieldsAreTiedInTheirOrder) {
  WithDefault value{torch::ones(1), torch::zeros(1)};
  auto [x, y, count] = tie_fields(value);
  EXPECT_TRUE(x.is_same(value.x) && y.is_same(value.y));
  count = 7;
  EXPECT_EQ(value.count, 7) << "a tied field is the field itself";
}

} // namespace
} // namespace tessera::detail
