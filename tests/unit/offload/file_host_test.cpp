// Real files: bytes come back, nothing is left, and what a full or forbidden folder says.
#include "tessera/offload/file_host.h"

#include <csignal>
#include <ctime>
#include <filesystem>

#include <sys/resource.h>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/offload/offloader.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Folder {
  Folder() : path(::testing::TempDir() + "tessera_offload_XXXXXX") {
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
  }
  ~Folder() {
    std::filesystem::remove_all(path);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

/// Files of this process cannot grow beyond it, as on a full disk.
class LimitedFiles {
 public:
  explicit LimitedFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LimitedFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  LimitedFiles(const LimitedFiles&) = delete;
  LimitedFiles& operator=(const LimitedFiles&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

template <typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

at::Tensor random_bytes(std::int64_t bytes) {
  return torch::randint(0, 256, {bytes}, torch::kByte);
}

TEST(FileHost, BytesComeBackAndNoFileIsLeft) {
  const Folder folder;
  FileHost host(folder.path, "rank 3 on here");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  torch::manual_seed(1);
  // Below, at and above a page and the size of the buffer, and not a multiple of either.
  for (const std::int64_t bytes : {1L, 4096L, 4097L, 1L << 20, (3L << 20) + 77}) {
    const at::Tensor given = random_bytes(bytes);
    const Place place = host.reserve(bytes);
    host.copy_out(given, place)->wait();
    const at::Tensor back = torch::zeros({bytes}, torch::kByte);
    host.copy_in(place, back)->wait();
    EXPECT_TRUE(back.equal(given)) << bytes;
    host.give_back(place);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  EXPECT_EQ(host.bytes(), (3L << 20) + 4096) << "pieces are used again";
}

TEST(FileHost, ManyCopiesAtOnce) {
  const Folder folder;
  FileHost host(folder.path, "rank 0");
  std::vector<at::Tensor> given;
  std::vector<Place> places;
  std::vector<std::shared_ptr<Copy>> copies;
  for (int i = 0; i < 20; ++i) {
    given.push_back(random_bytes(100'000 + i));
    places.push_back(host.reserve(given.back().numel()));
    copies.push_back(host.copy_out(given.back(), places.back()));
  }
  for (const auto& copy : copies) {
    copy->wait();
    EXPECT_TRUE(copy->done());
  }
  for (int i = 19; i >= 0; --i) {
    const at::Tensor back = torch::zeros_like(given[i]);
    host.copy_in(places[i], back)->wait();
    EXPECT_TRUE(back.equal(given[i])) << i;
  }
}

TEST(FileHost, TheThreadSleepsWhenThereIsNothingToCopy) {
  const Folder folder;
  const FileHost host(folder.path, "rank 0");
  const std::clock_t before = std::clock(); // of all threads
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST(FileHost, AFolderThatCannotBeUsed) {
  EXPECT_THAT(
      error_of([] { const FileHost host("/no/such/folder", "rank 3 on here"); }),
      AllOf(
          HasSubstr("offload_directory: rank 3 on here cannot make a file in '/no/such/folder'"),
          HasSubstr("No such file or directory"),
          HasSubstr("name a folder on a local disk")));
  EXPECT_THAT(
      error_of([] { const FileHost host("/proc", "rank 3 on here"); }),
      HasSubstr("cannot make a file in '/proc'"));
}

TEST(FileHost, AFullDiskIsSaidAndTheHostGoesOn) {
  const Folder folder;
  FileHost host(folder.path, "rank 2 on here");
  const Place first = host.reserve(1 << 20);
  {
    const LimitedFiles limit(2 << 20);
    EXPECT_THAT(
        error_of([&] { host.reserve(4 << 20); }),
        AllOf(
            HasSubstr("offload_directory '" + folder.path + "'"),
            HasSubstr("of rank 2 on here cannot grow from 1048576 to"),
            HasSubstr("File too large"),
            HasSubstr("name a folder with more room")));
    const at::Tensor given = random_bytes(1 << 20);
    host.copy_out(given, first)->wait();
    const at::Tensor back = torch::zeros_like(given);
    host.copy_in(first, back)->wait();
    EXPECT_TRUE(back.equal(given));
  }
  const Place second = host.reserve(4 << 20);
  EXPECT_GE(second.offset, first.bytes);
}

/// Two products with a dropout between, of which only inputs are kept.
struct Chain {
  Chain() {
    torch::manual_seed(3);
    for (int i = 0; i < kRegions; ++i) {
      weights.push_back(torch::randn({64, 64}).mul_(0.2).requires_grad_());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < kRegions; ++i) {
      recompute::Region region;
      region.name = str("part ", i);
      region.run = [weight = weights[i]](const c10::IValue& args) {
        const auto [given] = unpack<std::tuple<at::Tensor>>(args);
        return pack(torch::dropout(torch::tanh(given.matmul(weight)), 0.3, true));
      };
      y = unpack<at::Tensor>(recompute::run(std::move(region), pack(std::tuple<at::Tensor>(y))));
    }
    return y;
  }
  static constexpr int kRegions = 5;
  std::vector<at::Tensor> weights;
};

TEST(FileHost, ARegionComputesTheSameBits) {
  const Folder folder;
  for (const int horizon : {1, 4, 100}) {
    Chain kept;
    Chain moved;
    const auto host = std::make_shared<FileHost>(folder.path, "rank 0");
    Offloader offloader(host, {.horizon = horizon, .by_region = true});
    for (int step = 0; step < 3; ++step) {
      torch::manual_seed(20 + step);
      const at::Tensor x = torch::randn({64, 64});
      const auto train = [&](Chain& chain) {
        torch::manual_seed(30 + step);
        const at::Tensor y = chain.forward(x.clone());
        const at::Tensor loss = y.pow(2).mean();
        return std::pair(loss, [loss] { loss.backward(); });
      };
      const auto [loss, backward] = train(kept);
      backward();
      offloader.step_begins(1);
      {
        const recompute::KeeperScope scope(&offloader, 0);
        offloader.task_begins({0, false});
        const auto [again, backward_again] = train(moved);
        offloader.task_begins({0, true});
        backward_again();
        EXPECT_TRUE(again.equal(loss));
      }
      offloader.step_ended();
    }
    for (int i = 0; i < Chain::kRegions; ++i) {
      EXPECT_TRUE(moved.weights[i].grad().equal(kept.weights[i].grad())) << i;
    }
    EXPECT_GE(offloader.counters().copies_out, Chain::kRegions) << "the first microbatch";
    if (horizon == 100) {
      EXPECT_EQ(offloader.counters().copies_out, Chain::kRegions) << "and no other";
    }
    const std::int64_t page = Chain::kRegions * 64 * 64 * 4;
    EXPECT_EQ(host->bytes(), page) << "one microbatch's";
  }
}

} // namespace
} // namespace tessera::offload
