// Two environment variables of jobs for the documented library.
#include "tessera/config/transfer_variables.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TransferVariables, TheyGoBeforeTheConfiguration) {
  const Config given{.transport_buffer_bytes = 1 << 20, .same_node_backend = "shm"};
  const Launched launched = with_transfer_variables(given, "1", "2097152");
  EXPECT_EQ(launched.config.same_node_backend, "mpi");
  EXPECT_EQ(launched.config.transport_buffer_bytes, 2097152);
  EXPECT_THAT(
      launched.changes,
      ElementsAre(
          "\"same_node_backend\" is \"mpi\" by SMP_DISABLE_D2D, not \"shm\"",
          "\"transport_buffer_bytes\" is 2097152 by SMP_D2D_GPU_BUFFER_SIZE_BYTES, not 1048576"));
  // Also before what the other variable says.
  const Config by_launcher = with_launcher_values(given, R"({"same_node_backend": "auto"})").config;
  EXPECT_EQ(with_transfer_variables(by_launcher, "true", nullptr).config.same_node_backend, "mpi");
}

TEST(TransferVariables, JobsThatNeedNoBufferWriteOne) {
  const Launched launched = with_transfer_variables({}, "1", "1");
  EXPECT_EQ(launched.config.transport_buffer_bytes, 65536);
}

TEST(TransferVariables, NothingSaidChangesNothing) {
  Config given;
  given.microbatches = 3;
  for (const char* disable : {static_cast<const char*>(nullptr), "", "0", "false"}) {
    for (const char* bytes : {static_cast<const char*>(nullptr), ""}) {
      const Launched launched = with_transfer_variables(given, disable, bytes);
      EXPECT_EQ(launched.config, given);
      EXPECT_THAT(launched.changes, IsEmpty());
    }
  }
  // What the configuration says already is no change.
  EXPECT_THAT(
      with_transfer_variables({.same_node_backend = "mpi"}, "1", "268435456").changes, IsEmpty());
}

TEST(TransferVariables, OtherTextsAreErrors) {
  const auto said = [](const char* disable, const char* bytes) {
    try {
      with_transfer_variables({}, disable, bytes);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(said("off", nullptr), HasSubstr("SMP_DISABLE_D2D is \"off\"; write 0, 1"));
  for (const char* bytes : {"0", "-5", "1 MB", "1e6", "99999999999999999999"}) {
    EXPECT_THAT(said(nullptr, bytes), HasSubstr("SMP_D2D_GPU_BUFFER_SIZE_BYTES is \"")) << bytes;
  }
}

} // namespace
} // namespace tessera::config::test
