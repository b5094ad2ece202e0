// Every alias can be held, called and told from libtorch's own class: what cannot be derived from
// or packed would not compile or link.
#include "tessera/nn/module/layers_of_libtorch.h"

#include <functional>
#include <map>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

/// Instantiates all that a holder needs of a layer's class; never called.
template <typename Holder>
std::function<Holder(const typename Holder::ImplType&)> maker() {
  return [](const typename Holder::ImplType& like) {
    return Holder(std::make_shared<typename Holder::ImplType>(like));
  };
}

TEST(LayersOfLibtorch, AllHaveAHolder) {
  std::map<std::string, bool> known;
#define TESSERA_LAYER(Name) \
  known[#Name] =            \
      maker<Name>() != nullptr && std::is_same_v<typename Name::ImplType, torch::nn::Name##Impl>;
  TESSERA_FOR_EACH_LAYER(TESSERA_LAYER)
#undef TESSERA_LAYER
  EXPECT_GE(known.size(), 100U);
  for (const auto& [name, held] : known) {
    EXPECT_TRUE(held) << name;
  }
}

class Counting : public Interceptor {
 public:
  bool wants(const torch::nn::Module&) override {
    return true;
  }
  c10::IValue call(
      torch::nn::Module& module,
      const CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    ++calls;
    return find_invoker(key.hash)(module, args, first, last);
  }
  int calls = 0;
};

TEST(LayersOfLibtorch, CallsArriveWithWhatTheyTakeAndReturn) {
  torch::manual_seed(2);
  const auto x = torch::randn({5, 2, 8});
  const LSTM lstm(8, 6);
  const MultiheadAttention attention(8, 2);
  const Upsample upsample(
      torch::nn::UpsampleOptions().scale_factor(std::vector<double>{2}).mode(torch::kNearest));
  const MaxUnpool1d unpool(torch::nn::MaxUnpool1dOptions(2));
  const TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(8, 2).dropout(0));
  const auto indices = torch::arange(0, 8, 2).expand({5, 2, 4}).contiguous();
  const auto all = [&] {
    const auto [output, state] = lstm(x);
    const auto [again, state_again] = lstm(x, state);
    return std::vector<torch::Tensor>{
        again,
        std::get<0>(attention(x, x, x)),
        upsample(x),
        unpool(x.narrow(2, 0, 4), indices),
        layer(x)};
  };
  const auto plain = all();
  Counting counting;
  const InterceptorScope scope(&counting);
  const auto packed = all();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(packed[i], plain[i])) << i;
  }
  EXPECT_EQ(counting.calls, 6);
}

} // namespace
} // namespace tessera::nn
