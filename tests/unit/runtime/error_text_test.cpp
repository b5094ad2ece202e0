#include "tessera/runtime/error_text.h"

#include <cstdlib>
#include <stdexcept>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::runtime {
namespace {

using ::testing::HasSubstr;

template <typename Run>
std::exception_ptr thrown_by(const Run& run) {
  try {
    run();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

TEST(ErrorText, HasTheStackOfLibtorchWhenItIsAskedFor) {
  const auto error = thrown_by([] { TORCH_CHECK(false, "planted"); });
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_EQ(message_of(error), "planted");
  EXPECT_EQ(error_text(error, 3, "module 'a'"), "rank 3, module 'a': planted");
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "0", 1);
  EXPECT_EQ(message_of(error), "planted");
  ::setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  EXPECT_THAT(message_of(error), HasSubstr("frame #0"));
  ::unsetenv("TORCH_SHOW_CPP_STACKTRACES");
}

TEST(ErrorText, OfAnotherRankIsKept) {
  const auto error = thrown_by([] { throw FailedElsewhere("rank 1, module 'b': planted"); });
  EXPECT_EQ(error_text(error, 0, "module 'a'"), "rank 1, module 'b': planted");
  EXPECT_EQ(message_of(thrown_by([] { throw 1; })), "an exception that is not a std::exception");
}

TEST(ErrorText, NamesItsOrigin) {
  EXPECT_EQ(origin_of("rank 12, module 'a': planted"), 12);
  EXPECT_EQ(origin_of("rank 0: no file"), 0);
  for (const char* text :
       {"", "rank ", "rank 1", "rank x, y", "rank 1 heard nothing", "a rank 1, "}) {
    EXPECT_EQ(origin_of(text), std::nullopt) << text;
  }
}

} // namespace
} // namespace tessera::runtime
