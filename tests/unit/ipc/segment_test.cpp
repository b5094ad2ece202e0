// Memory that another process finds by its address, and refuses when it is another one.
#include "tessera/ipc/segment.h"

#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::ipc {
namespace {

TEST(Segment, AnotherProcessSeesWhatIsWritten) {
  const Segment segment = Segment::create(10000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.data()) % 4096, 0U);
  const auto numbers = segment.address().to_numbers();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Segment theirs = Segment::open(SegmentAddress::from_numbers(numbers));
    std::memcpy(theirs.data() + 9990, "seen", 5);
    ::_exit(theirs.size() == 10000 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(segment.data() + 9990), "seen");
}

TEST(Segment, OtherMemoryIsRefused) {
  const Segment segment = Segment::create(100);
  SegmentAddress address = segment.address();
  address.nonce ^= 2;
  EXPECT_THROW(Segment::open(address), CommError);
  address = segment.address();
  address.bytes = 1 << 20; // as of another file: reading it would be a bus error
  EXPECT_THROW(Segment::open(address), CommError);
  address = segment.address();
  address.descriptor = 100000;
  EXPECT_THROW(Segment::open(address), CommError);
  EXPECT_THROW(SegmentAddress::from_numbers({1, 2, 3}), CommError);
}

} // namespace
} // namespace tessera::ipc
