// What a failed step leaves in MPI is taken out of it, so that the communicator can be used again.
#include "tessera/comm/backends/mpi/peer_messages.h"

#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <mpi.h>

#include <gtest/gtest.h>

#include "tessera/comm/backends/mpi/transfers.h"
#include "tessera/comm/backoff.h"

namespace tessera::comm::mpi {
namespace {

class PeerMessagesTest : public testing::Test {
 protected:
  void SetUp() override {
    info_.name = "test";
    info_.timeout = std::chrono::milliseconds(60000);
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &info_.rank);
    info_.ranks.resize(static_cast<std::size_t>(size));
    std::iota(info_.ranks.begin(), info_.ranks.end(), 0);
    MPI_Comm comm = MPI_COMM_NULL;
    ASSERT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &comm), MPI_SUCCESS);
    messages_ = std::make_unique<PeerMessages>(info_, comm);
  }

  int next() const {
    return (info_.rank + 1) % info_.size();
  }
  int previous() const {
    return (info_.rank + info_.size() - 1) % info_.size();
  }
  void drain() {
    Backoff backoff(info_.timeout);
    messages_->drain([&] {
      if (backoff.expired()) {
        throw std::runtime_error("a rank did not come");
      }
      backoff.pause();
    });
  }
  /// A number goes around under `tag`, as in the next step.
  void require_passes(int tag, int number) {
    int sent = number + info_.rank;
    int came = -1;
    Transfers transfers(*messages_, tag);
    transfers.receive(previous(), &came, sizeof(came));
    transfers.send(next(), &sent, sizeof(sent));
    while (!transfers.done()) {
      transfers.progress();
    }
    EXPECT_EQ(came, number + previous());
  }

  GroupInfo info_;
  std::unique_ptr<PeerMessages> messages_;
};

TEST_F(PeerMessagesTest, WhatNobodyReceivesIsDropped) {
  for (int step = 0; step < 20; ++step) {
    require_passes(5, step);
    // Long ones wait for their receiver, short ones lie on its side.
    for (const std::size_t bytes : {std::size_t{3} << 20, std::size_t{8}, std::size_t{0}}) {
      const auto data = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0x5A});
      messages_->leave(messages_->send(next(), 5, data->data(), bytes), data);
    }
    // And what this rank waits for never comes.
    std::byte never[16] = {};
    Transfers waiting(*messages_, 9);
    waiting.receive(previous(), never, sizeof(never));
    EXPECT_FALSE(waiting.progress());
    EXPECT_NE(waiting.missing().find("nothing came from rank"), std::string::npos);
    waiting.drop();
    drain();
  }
  require_passes(5, 100);
  drain(); // nothing is left to do
  require_passes(9, 200);
}

} // namespace
} // namespace tessera::comm::mpi
