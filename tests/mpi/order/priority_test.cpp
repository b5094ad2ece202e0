// A server that comes free takes backwards first, then low microbatches, whatever came first.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kQueued = 5;

/// A file that one rank makes and another waits for.
class Signal {
 public:
  explicit Signal(const std::string& name) {
    int id = static_cast<int>(::getpid());
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    path_ = fs::temp_directory_path() / str("tessera_order_", id, "_", name);
  }
  ~Signal() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  void give() const {
    std::ofstream(path_) << "given";
  }
  void wait() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!fs::exists(path_)) {
      if (std::chrono::steady_clock::now() > end) {
        throw UserError("no signal in " + path_.string());
      }
      sleep_ms(2);
    }
  }

 private:
  fs::path path_;
};

/// Notes the phases of the microbatches that it computes; the input holds their number.
struct NotingImpl : torch::nn::Module {
  NotingImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const int microbatch = static_cast<int>(x[0][0].item<float>());
    if (is_tracing() || before == nullptr) {
      return layer(x);
    }
    ran.push_back({microbatch, Phase::kForward});
    before(microbatch);
    auto y = layer(x);
    y.register_hook([this, microbatch](const torch::Tensor& gradient) {
      ran.push_back({microbatch, Phase::kBackward});
      return gradient;
    });
    return y;
  }
  nn::Linear layer{nullptr};
  std::function<void(int)> before;
  std::vector<Action> ran;
};
TESSERA_MODULE(Noting);

struct AwayImpl : torch::nn::Module {
  AwayImpl() {
    far = register_module("far", Noting());
    near = register_module("near", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return near(far(x));
  }
  Noting far{nullptr};
  nn::Linear near{nullptr};
};
TESSERA_MODULE(Away);

// The server is inside the forward of microbatch 2 while the forwards of 3 and 0, the backward of 1
// and the forward of 4 come, in this order.
TEST(Priority, BackwardFirstThenLowMicrobatches) {
  if (world_size() != 2) {
    GTEST_SKIP() << "a root and one server";
  }
  Config config = placed(2, kQueued, {{"far", 1}});
  config.pipeline = "custom";
  config.custom_schedule = "1F 2F 3F 0F 1B 4F 2B 0B 3B 4B";
  config.active_microbatches = kQueued;
  init(config);
  const Ended ended;
  const Signal busy("busy");
  const Signal sent("sent");
  torch::manual_seed(3);
  Away away;
  DistributedModel model{away};
  Watch watch;
  bool held = false;
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor number) {
    return watched(
        model,
        watch,
        number,
        [&] { return model(x).pow(2).mean(); },
        [&](int microbatch, Phase phase) {
          if (held && phase == Phase::kForward && microbatch == 3) {
            busy.wait();
          } else if (held && phase == Phase::kForward && microbatch == 4) {
            sent.give(); // all but its own request
          }
        });
  });
  const auto numbers = numbers_of(kQueued);
  const auto x = numbers.to(torch::kFloat).unsqueeze(1).expand({kQueued, kWidth});
  train_step(x, numbers); // the partition
  held = true;
  away->far->before = [&](int microbatch) {
    if (microbatch == 2) {
      busy.give();
      sent.wait();
      sleep_ms(2000); // until what was sent is here, on a busy machine too
    }
  };
  train_step(x, numbers);
  if (pp_rank() == 1) {
    // The backward of 2 becomes possible behind its forward, and goes before what is left whenever
    // the root has asked for it.
    const std::vector<Action>& ran = away->far->ran;
    EXPECT_EQ(schedule::to_text({ran.begin(), ran.begin() + 3}), "1F 2F 1B");
    std::vector<Action> forwards;
    std::copy_if(ran.begin(), ran.end(), std::back_inserter(forwards), [](const Action& action) {
      return action.phase == Phase::kForward;
    });
    EXPECT_EQ(schedule::to_text(forwards), "1F 2F 0F 3F 4F");
  }
}

} // namespace
} // namespace tessera::testing
