// What happens to nested values when their tensors are taken out or replaced.
#include "tessera/tensor/map_tensors.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

at::Tensor doubled(const at::Tensor& tensor) {
  return tensor * 2;
}

TEST(MapTensors, ListsOfTensorsStayLists) {
  const c10::IValue mapped =
      map_tensors(c10::List<at::Tensor>({torch::ones({2}), torch::ones({3})}), doubled);
  ASSERT_TRUE(mapped.isTensorList());
  const auto list = mapped.toTensorList();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_TRUE(at::Tensor(list[1]).equal(torch::full({3}, 2.0)));
  EXPECT_TRUE(map_tensors(c10::List<at::Tensor>(), doubled).isTensorList());
}

TEST(MapTensors, OtherListsAndDictsKeepTheirTypes) {
  EXPECT_EQ(
      map_tensors(c10::List<std::int64_t>({4, 5}), doubled).toIntVector(),
      (std::vector<std::int64_t>{4, 5}));
  c10::impl::GenericList any(c10::AnyType::get());
  any.push_back(torch::ones({1}));
  any.push_back(c10::IValue());
  const auto mixed = map_tensors(any, doubled).toList();
  EXPECT_EQ(c10::IValue(mixed.get(0)).toTensor().item<float>(), 2);
  EXPECT_TRUE(c10::IValue(mixed.get(1)).isNone());
  c10::Dict<std::string, c10::List<at::Tensor>> dict;
  dict.insert("key", c10::List<at::Tensor>({torch::ones({1})}));
  const auto named = map_tensors(dict, doubled).toGenericDict();
  EXPECT_TRUE(named.at("key").isTensorList());
}

TEST(MapTensors, ListsWhoseTensorsBecomeOtherThingsLoseTheirType) {
  const c10::IValue mapped = map_tensors(
      c10::List<at::Tensor>({torch::ones({2})}),
      [](const at::Tensor& tensor) { return c10::IValue(tensor.numel()); });
  ASSERT_TRUE(mapped.isList());
  EXPECT_FALSE(mapped.isTensorList());
  EXPECT_EQ(mapped.toListRef()[0].toInt(), 2);
}

} // namespace
} // namespace tessera
