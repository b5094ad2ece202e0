#include "tessera/transport/shm/arena.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/transport/shm/ring.h"
#include "tessera/transport/shm/waiter.h"

namespace tessera::transport::shm {
namespace {

TEST(Arena, BlocksAreAlignedDisjointAndComeBackWhole) {
  const auto mapping = Mapping::create(1, 1 << 20);
  Arena arena(mapping);
  std::mt19937 random(7);
  struct Block {
    std::uint64_t at;
    std::size_t bytes;
  };
  std::vector<Block> blocks;
  for (int round = 0; round < 5000; ++round) {
    if (random() % 2 == 0 && !blocks.empty()) {
      const std::size_t which = random() % blocks.size();
      mapping->release(blocks[which].at);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const std::size_t bytes = 1 + random() % 20000;
    if (const auto at = arena.allocate(bytes)) {
      ASSERT_EQ(*at % 64, 0U);
      ASSERT_LE(*at + bytes, mapping->arena_bytes());
      for (const Block& other : blocks) {
        ASSERT_TRUE(*at + bytes <= other.at || other.at + other.bytes <= *at);
      }
      blocks.push_back({*at, bytes});
    }
  }
  for (const Block& block : blocks) {
    mapping->release(block.at);
  }
  // All merged: one block of everything but its head fits again.
  EXPECT_TRUE(arena.allocate((1 << 20) - sizeof(BlockHead)).has_value());
  EXPECT_FALSE(arena.allocate(1).has_value());
}

TEST(Arena, WhatIsNoBlockIsRefused) {
  const auto mapping = Mapping::create(1, 1 << 16);
  Arena arena(mapping);
  mapping->release(4096);
  EXPECT_THROW(arena.allocate(1), CommError);
}

TEST(Ring, FramesOfAllSizesPassInOrderAndFullIsTold) {
  const auto mapping = Mapping::create(1, 1 << 16);
  RingWriter writer(mapping->ring_head(0), mapping->ring_data(0));
  RingReader reader(mapping->ring_head(0), mapping->ring_data(0));
  std::atomic<int> wakes{0};
  constexpr int kFrames = 20000;
  std::thread sender([&] {
    std::mt19937 random(3);
    std::vector<std::byte> message;
    for (int i = 0; i < kFrames; ++i) {
      message.assign(random() % 3000, static_cast<std::byte>(i));
      // Read before the try, as the message thread does: a wake in between
      // must not be missed.
      int before = wakes.load();
      while (!writer.write(
          FrameKind::kMessage, message.data(), message.size(), static_cast<std::uint64_t>(i))) {
        // A full ring's reader says when it has made room.
        while (wakes.load() == before) {
          std::this_thread::yield();
        }
        before = wakes.load();
      }
    }
  });
  std::mt19937 random(3);
  for (int i = 0; i < kFrames; ++i) {
    Frame frame;
    const std::byte* message = nullptr;
    while (!reader.peek(frame, message)) {
      std::this_thread::yield();
    }
    ASSERT_EQ(frame.offset, static_cast<std::uint64_t>(i));
    ASSERT_EQ(frame.bytes, random() % 3000);
    ASSERT_TRUE(std::all_of(message, message + frame.bytes, [i](std::byte byte) {
      return byte == static_cast<std::byte>(i);
    }));
    if (reader.pop()) {
      ++wakes;
    }
  }
  sender.join();
  Frame frame;
  const std::byte* message = nullptr;
  EXPECT_FALSE(reader.peek(frame, message));
}

TEST(Ring, DamageIsAnError) {
  const auto mapping = Mapping::create(1, 1 << 16);
  RingWriter writer(mapping->ring_head(0), mapping->ring_data(0));
  RingReader reader(mapping->ring_head(0), mapping->ring_data(0));
  const std::byte message[100]{};
  ASSERT_TRUE(writer.write(FrameKind::kMessage, message, 100, 0));
  Frame frame;
  frame.kind = FrameKind::kMessage;
  frame.bytes = 1 << 30;
  frame.skip = 160;
  std::memcpy(mapping->ring_data(0), &frame, sizeof(frame));
  const std::byte* at = nullptr;
  EXPECT_THROW(reader.peek(frame, at), CommError);
}

TEST(Waiter, AWaitEndsWhenTheCounterIsRaisedOrByTimeout) {
  const auto mapping = Mapping::create(1, 1 << 16);
  ipc::Counter& counter = mapping->control().inbox;
  Waiter waiter(true);
  const auto start = std::chrono::steady_clock::now();
  waiter.wait(counter, 0, std::chrono::milliseconds(30));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(25));
  std::thread other([&] { counter.raise(); });
  while (counter.value.load() == 0) {
    waiter.wait(counter, 0, std::chrono::seconds(60));
  }
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

} // namespace
} // namespace tessera::transport::shm
