// Memory that the system gives page by page and takes back.
#include "tessera/sharding/pages.h"

#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tessera::sharding {
namespace {

std::size_t resident_pages(const std::byte* begin, std::size_t pages) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> states(pages);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(begin), pages * page, states.data()), 0);
  std::size_t count = 0;
  for (const unsigned char state : states) {
    count += state & 1U;
  }
  return count;
}

TEST(Pages, OnlyWholePagesAreGivenBack) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto pages = Pages::of_process(8 * page);
  std::byte* data = pages->data();
  EXPECT_EQ(resident_pages(data, 8), 0u); // untouched
  std::memset(data, 1, 8 * page);
  EXPECT_EQ(resident_pages(data, 8), 8u);
  pages->give_back(data + 1, data + 4 * page - 1); // pages 1 and 2
  EXPECT_EQ(resident_pages(data, 8), 6u);
  EXPECT_EQ(data[page - 1], std::byte{1});
  EXPECT_EQ(data[3 * page], std::byte{1});
  EXPECT_EQ(data[page], std::byte{0}); // comes again, empty
  pages->give_back(data + 5 * page + 1, data + 6 * page); // not a whole one
  EXPECT_EQ(data[6 * page - 1], std::byte{1});
}

} // namespace
} // namespace tessera::sharding
