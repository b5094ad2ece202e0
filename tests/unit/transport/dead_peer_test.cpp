// What a rank sees when the process of another one ends.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/transport/inproc/inproc_channel.h"
#include "tessera/transport/mailbox.h"
#include "tessera/transport/message.h"
#include "tessera/transport/shm/ring.h"

namespace tessera::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// This process is rank 4; rank 7 is a child that does nothing and whose
// segment the test writes.
class DeadPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      for (;;) {
        ::pause();
      }
    }
    Mailbox::Parts parts;
    parts.peers.resize(2);
    for (int i = 0; i < 2; ++i) {
      Peer& peer = parts.peers[static_cast<std::size_t>(i)];
      peer.rank = i == 0 ? 4 : 7;
      peer.host = "node-x";
      peer.ring = i;
      peer.mapping = shm::Mapping::create(2, 1 << 20);
    }
    parts.peers[1].process = std::make_shared<diagnostics::ProcessWatch>(child_);
    theirs_ = parts.peers[1].mapping;
    parts.channel = std::make_unique<inproc::InprocChannel>(0, std::make_shared<inproc::Bulks>());
    parts.drain = seconds(60);
    mailbox_ = std::make_unique<Mailbox>(std::move(parts));
  }
  void TearDown() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }

  // Not waited for: it stays a zombie, as under a launcher that is busy.
  void kill_it() {
    ASSERT_EQ(::kill(child_, SIGKILL), 0);
  }
  void it_sends(int number) {
    shm::RingWriter ring(theirs_->ring_head(0), theirs_->ring_data(0));
    const auto bytes = encode({}, {}, comm::strip(number).structure, {});
    ASSERT_TRUE(ring.write(shm::FrameKind::kMessage, bytes.data(), bytes.size(), 0));
  }

  pid_t child_ = -1;
  shm::MappingPtr theirs_;
  std::unique_ptr<Mailbox> mailbox_;
};

TEST_F(DeadPeer, AWaitEndsWithItsRankProcessAndHost) {
  EXPECT_FALSE(mailbox_->receive(milliseconds(300)));
  kill_it();
  const auto start = steady_clock::now();
  try {
    mailbox_->receive(seconds(30));
    FAIL() << "the wait ended without an error";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 7"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(child_)), std::string::npos) << text;
    EXPECT_NE(text.find("node-x"), std::string::npos) << text;
  }
  EXPECT_LT(steady_clock::now() - start, seconds(5));
  EXPECT_THROW(mailbox_->receive(milliseconds(0)), CommError);
  EXPECT_THROW(mailbox_->send(7, {}, 1), CommError);
}

TEST_F(DeadPeer, WhatItSentIsDeliveredFirst) {
  it_sends(31);
  kill_it();
  const auto parcel = mailbox_->receive(seconds(30));
  ASSERT_TRUE(parcel.has_value());
  EXPECT_EQ(parcel->source, 7);
  EXPECT_EQ(parcel->body.toInt(), 31);
  EXPECT_THROW(mailbox_->receive(seconds(30)), CommError);
}

TEST_F(DeadPeer, APeerThatLeftInGoodOrderIsNoError) {
  theirs_->control().closed.store(1);
  kill_it();
  EXPECT_FALSE(mailbox_->receive(milliseconds(500)));
  mailbox_->send(7, {}, 1);
}

TEST_F(DeadPeer, ItsFullRingDoesNotKeepTheTransportFromEnding) {
  for (int i = 0; i < 5000; ++i) {
    mailbox_->send(7, {}, i);
  }
  kill_it();
  const auto start = steady_clock::now();
  mailbox_.reset();
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

} // namespace
} // namespace tessera::transport
