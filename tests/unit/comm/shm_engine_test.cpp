// The shared-memory engine on threads, without libtorch: what happens when
// ranks are late, differ, or give up; also built alone under ThreadSanitizer.
#include "tessera/comm/backends/shm/shm_engine.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::comm::shm {
namespace {

using std::chrono::milliseconds;

class ShmEngineTest : public testing::Test {
 protected:
  void make_engines(int size, milliseconds timeout) {
    const auto segment =
        std::make_shared<const ipc::Segment>(ipc::Segment::heap(group_segment_bytes(size)));
    GroupInfo info;
    info.name = "test";
    info.timeout = timeout;
    for (int rank = 0; rank < size; ++rank) {
      info.ranks.push_back(10 + rank); // not the ranks in the group
    }
    for (info.rank = 0; info.rank < size; ++info.rank) {
      engines_.push_back(std::make_unique<ShmEngine>(info, segment));
    }
  }

  /// Runs `run(rank, engine)` on a thread a rank; returns each one's error.
  std::vector<std::string> on_all(const std::function<void(int, ShmEngine&)>& run) {
    std::vector<std::string> errors(engines_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      threads.emplace_back([this, rank, &run, &errors] {
        try {
          run(static_cast<int>(rank), *engines_[rank]);
        } catch (const CommError& e) {
          errors[rank] = e.what();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return errors;
  }

  std::vector<std::unique_ptr<ShmEngine>> engines_;
};

Operation all_reduce(std::vector<float>& data) {
  Operation operation;
  operation.kind = Collective::kAllReduce;
  operation.type = DataType::kF32;
  operation.input = data.data();
  operation.output = data.data();
  operation.count = static_cast<std::int64_t>(data.size());
  return operation;
}

TEST_F(ShmEngineTest, SumsOfManyRoundsAndManyOperations) {
  make_engines(3, milliseconds(30000));
  const auto errors = on_all([](int rank, ShmEngine& engine) {
    for (const std::size_t size : {5U, 700001U, 1000U, 70000U}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<float> data(size);
        for (std::size_t i = 0; i < size; ++i) {
          data[i] = static_cast<float>((i + static_cast<std::size_t>(rank)) % 7);
        }
        engine.run(all_reduce(data));
        for (std::size_t i = 0; i < size; ++i) {
          const auto expected = static_cast<float>(i % 7 + (i + 1) % 7 + (i + 2) % 7);
          if (data[i] != expected) {
            throw CommError(str("element ", i, " is ", data[i]));
          }
        }
      }
    }
    engine.run(Operation()); // barrier
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

TEST_F(ShmEngineTest, TimeoutNamesTheRankThatDoesNotCome) {
  make_engines(3, milliseconds(200));
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_all([](int rank, ShmEngine& engine) {
    engine.run(Operation());
    std::vector<float> data(10);
    if (rank != 1) {
      engine.run(all_reduce(data));
    }
  });
  EXPECT_EQ(errors[1], "");
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_THAT(errors[rank], testing::HasSubstr("not arrived: rank 11 (began 1 of 2"));
    EXPECT_THAT(errors[rank], testing::HasSubstr("all_reduce #2"));
    EXPECT_THAT(errors[rank], testing::HasSubstr("group 'test' (ranks 10 11 12)"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST_F(ShmEngineTest, SizesThatDifferAreAnErrorOnAllRanks) {
  make_engines(2, milliseconds(30000));
  const auto errors = on_all([](int rank, ShmEngine& engine) {
    std::vector<float> data(rank == 0 ? 10 : 12);
    engine.run(all_reduce(data));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, testing::HasSubstr("10 elements of f32"));
    EXPECT_THAT(error, testing::HasSubstr("12 elements of f32"));
    EXPECT_THAT(error, testing::HasSubstr("same calls in the same order"));
  }
}

TEST_F(ShmEngineTest, OperationsThatDifferAreAnErrorOnAllRanks) {
  make_engines(2, milliseconds(30000));
  const auto errors = on_all([](int rank, ShmEngine& engine) {
    std::vector<float> data(100000);
    Operation operation = all_reduce(data);
    operation.reduce = rank == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    engine.run(operation);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, testing::HasSubstr("sum"));
    EXPECT_THAT(error, testing::HasSubstr("max"));
  }
}

TEST_F(ShmEngineTest, CancellingFreesTheWaitingAndTellsThePeers) {
  make_engines(2, milliseconds(30000));
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_all([this](int rank, ShmEngine& engine) {
    std::vector<float> data(10);
    if (rank == 0) {
      engine.run(all_reduce(data));
    } else {
      std::this_thread::sleep_for(milliseconds(100));
      engines_[0]->cancel();
      std::this_thread::sleep_for(milliseconds(200));
      engine.run(all_reduce(data));
    }
  });
  EXPECT_THAT(errors[0], testing::HasSubstr("gave the group up"));
  EXPECT_THAT(errors[1], testing::HasSubstr("rank 10 has failed"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10000));
}

} // namespace
} // namespace tessera::comm::shm
