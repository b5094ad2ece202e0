#include "tessera/runtime/shared_memory.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tensors = std::vector<at::Tensor>;

std::string error_of(const SharedMemoryWatch& watch) {
  try {
    watch.check();
  } catch (const UserError& error) {
    return error.what();
  }
  return "none";
}

TEST(ShareMemory, ViewsDoAndPartsSideBySideDoNot) {
  const at::Tensor x = torch::rand({4, 6});
  EXPECT_TRUE(share_memory(x, x));
  EXPECT_TRUE(share_memory(x, x.t()));
  EXPECT_TRUE(share_memory(x, x[2]));
  EXPECT_TRUE(share_memory(x.select(1, 3), x));
  EXPECT_TRUE(share_memory(x.narrow(0, 0, 3), x.narrow(0, 2, 2)));
  EXPECT_TRUE(share_memory(x.narrow(1, 0, 3), x.narrow(1, 2, 2)));
  EXPECT_TRUE(share_memory(x[0].expand({3, 6}), x[0]));
  EXPECT_FALSE(share_memory(x, torch::rand({4, 6})));
  EXPECT_FALSE(share_memory(x, at::Tensor()));
  EXPECT_FALSE(share_memory(x, x.narrow(0, 0, 0)));
  EXPECT_FALSE(share_memory(x.narrow(0, 0, 2), x.narrow(0, 2, 2)));
  const Tensors halves = x.chunk(2, 1);
  EXPECT_FALSE(share_memory(halves[0], halves[1]));
  EXPECT_FALSE(share_memory(halves[1], halves[0]));
  EXPECT_TRUE(share_memory(halves[1], x));
  const at::Tensor four = torch::rand({2, 3, 4, 5});
  EXPECT_FALSE(share_memory(four.select(1, 0), four.select(1, 2)));
  EXPECT_FALSE(share_memory(four.narrow(2, 0, 2), four.narrow(2, 2, 2)));
  EXPECT_TRUE(share_memory(four.narrow(2, 0, 3), four.narrow(2, 2, 2)));
}

TEST(SharedMemory, NamesResultsAndWhatTheyShareWith) {
  const at::Tensor x = torch::rand({4});
  const at::Tensor y = torch::rand({4});
  const at::Tensor fresh = x + y;
  const SharedMemory shared(
      pack(Tensors{x, y}), pack(Tensors{fresh, y.view({2, 2}), at::Tensor(), fresh}));
  EXPECT_EQ(shared.to_text(), "3:1 4:2");
  EXPECT_EQ(SharedMemory::from_text(shared.to_text()).pairs(), shared.pairs());
  EXPECT_THAT(SharedMemory::from_text("").pairs(), IsEmpty());
  EXPECT_THAT(SharedMemory(pack(Tensors{x, y}), pack(fresh)).pairs(), IsEmpty());
  for (const char* wrong : {"1", "1:", "1;2", "1:2 x"}) {
    EXPECT_THROW(SharedMemory::from_text(wrong), InternalError) << wrong;
  }
}

// The copies that a caller has of an argument and of the result that shared its memory.
struct Copies {
  explicit Copies(const char* shared = "1:0") {
    watch.add(
        "module 'a'",
        SharedMemory::from_text(shared),
        pack(argument),
        pack(Tensors{result, second}));
  }
  at::Tensor argument = torch::rand({4});
  at::Tensor result = argument.clone();
  at::Tensor second = argument.clone();
  SharedMemoryWatch watch;
};

TEST(SharedMemoryWatch, AChangeOfOneIsAnErrorWhileTheOtherIsThere) {
  Copies none;
  EXPECT_EQ(error_of(none.watch), "none");
  none.second.add_(1); // which shares nothing
  EXPECT_EQ(error_of(none.watch), "none");
  Copies first;
  first.result.add_(1);
  EXPECT_THAT(error_of(first.watch), HasSubstr("module 'a' returned memory of one of its"));
  first.argument = at::Tensor(); // too late: it may have been read
  EXPECT_NE(error_of(first.watch), "none");
  Copies other;
  other.argument.view({2, 2}).mul_(2);
  EXPECT_THAT(error_of(other.watch), HasSubstr("changed in place after the call"));
  Copies twice("2:1");
  twice.second.zero_();
  EXPECT_THAT(error_of(twice.watch), HasSubstr("module 'a' returned the same memory twice"));
}

TEST(SharedMemoryWatch, NobodyHasTheOther) {
  Copies gone;
  gone.argument = at::Tensor();
  gone.result.add_(1);
  EXPECT_EQ(error_of(gone.watch), "none");
  Copies result;
  result.result = at::Tensor();
  result.argument.add_(1);
  EXPECT_EQ(error_of(result.watch), "none");
  Copies viewed;
  const at::Tensor view = viewed.argument.view({2, 2});
  viewed.argument = at::Tensor();
  viewed.result.add_(1);
  EXPECT_NE(error_of(viewed.watch), "none");
}

// A mask goes through every layer, in every step, and keeps its memory and its numbers.
TEST(SharedMemoryWatch, ManyWatchOneTensor) {
  at::Tensor mask = torch::rand({1000});
  const at::Tensor numbers = mask.clone();
  const void* const memory = mask.data_ptr();
  std::weak_ptr<int> owned;
  {
    auto owner = std::make_shared<int>();
    owned = owner;
    mask = torch::from_blob(mask.data_ptr(), {1000}, [owner, mask](void*) mutable {
      mask = at::Tensor();
      owner.reset();
    });
  }
  for (int step = 0; step < 1000; ++step) {
    SharedMemoryWatch watch;
    for (int layer = 0; layer < 3; ++layer) {
      watch.add("m", SharedMemory::from_text("1:0"), pack(mask), pack(mask.clone()));
    }
    EXPECT_EQ(error_of(watch), "none");
  }
  EXPECT_EQ(mask.data_ptr(), memory);
  EXPECT_TRUE(mask.equal(numbers));
  EXPECT_FALSE(owned.expired());
  mask = at::Tensor();
  EXPECT_TRUE(owned.expired()); // its owner was told
}

} // namespace
} // namespace tessera::runtime
