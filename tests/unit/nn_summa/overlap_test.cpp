// In which order a product by broadcasts starts panels, multiplies and waits: the next panel is on
// its way, and the last partial result too, while a rank multiplies.
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/product.h"

#include "cases.h"
#include "mesh_ranks.h"
#include "tests/support/multiplications.h"

namespace tessera::nn::summa {
namespace {

/// What one rank did, in its order: "row 2 starts", "row 2 is awaited" for the third collective of
/// its row group, "column ..." likewise, "product 2" for the third product of its own matrices.
class Diary {
 public:
  Diary()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&look).scopes({at::RecordScope::FUNCTION}))) {
    current() = this;
  }
  ~Diary() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Diary(const Diary&) = delete;
  Diary& operator=(const Diary&) = delete;

  void clear() {
    events_.clear();
    products_ = 0;
  }
  void add(std::string event) {
    events_.push_back(std::move(event));
  }
  int products() const {
    return products_;
  }
  /// Throws unless both were done, `first` before `second`.
  void require_order(const std::string& first, const std::string& second) const {
    const std::size_t one = place_of(first);
    const std::size_t other = place_of(second);
    cases::require(one < other, "'" + first + "' comes behind '" + second + "' in: " + text());
  }

 private:
  static Diary*& current() {
    thread_local Diary* diary = nullptr;
    return diary;
  }
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& call) {
    if (testing::Multiplications::first_factor(call.name()) >= 0) {
      current()->add(tessera::str("product ", current()->products_++));
    }
    return nullptr;
  }
  std::size_t place_of(const std::string& event) const {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (events_[i] == event) {
        return i;
      }
    }
    throw std::runtime_error("'" + event + "' is not in: " + text());
  }
  std::string text() const {
    std::string all;
    for (const std::string& event : events_) {
      all += (all.empty() ? "" : ", ") + event;
    }
    return all;
  }

  std::vector<std::string> events_;
  int products_ = 0;
  at::CallbackHandle handle_;
};

class NotedWork final : public comm::Work {
 public:
  NotedWork(comm::WorkPtr work, Diary& diary, std::string event)
      : work_(std::move(work)), diary_(diary), event_(std::move(event)) {}
  void wait() override {
    diary_.add(event_);
    work_->wait();
  }
  bool done() override {
    return work_->done();
  }

 private:
  comm::WorkPtr work_;
  Diary& diary_;
  std::string event_;
};

/// A row or column group that writes down when its broadcasts and reductions are started and waited
/// for, and leaves them to the group that it was made from.
class NotedGroup final : public comm::ProcessGroup {
 public:
  NotedGroup(comm::ProcessGroupPtr group, Diary& diary)
      : ProcessGroup(group->info()),
        group_(std::move(group)),
        diary_(diary),
        line_(name().find(".mesh_row") != std::string::npos ? "row " : "column ") {}
  void abandon(const std::string& why) override {
    group_->abandon(why);
  }
  void recover() override {
    group_->recover();
  }
  /// Collectives are numbered from 0 again.
  void restart() {
    calls_ = 0;
  }

 protected:
  comm::WorkPtr start(Call call) override {
    const std::string event = line_ + std::to_string(calls_++);
    diary_.add(event + " starts");
    const comm::Operation& operation = call.operation;
    cases::require(
        operation.kind == comm::Collective::kBroadcast ||
            operation.kind == comm::Collective::kReduce,
        "a product uses broadcasts and reductions alone");
    comm::WorkPtr work = operation.kind == comm::Collective::kBroadcast
                             ? group_->broadcast_async(call.output, operation.root)
                             : group_->reduce_async(call.output, operation.root, operation.reduce);
    return std::make_shared<NotedWork>(std::move(work), diary_, event + " is awaited");
  }

 private:
  comm::ProcessGroupPtr group_;
  Diary& diary_;
  std::string line_;
  int calls_ = 0;
};

/// A world whose groups are noted.
class NotedWorld final : public comm::World {
 public:
  NotedWorld(comm::World& world, Diary& diary) : world_(world), diary_(diary) {}
  int rank() const override {
    return world_.rank();
  }
  int size() const override {
    return world_.size();
  }
  int local_rank() const override {
    return world_.local_rank();
  }
  int local_size() const override {
    return world_.local_size();
  }
  const std::vector<std::string>& hosts() const override {
    return world_.hosts();
  }
  const comm::WorldOptions& options() const override {
    return world_.options();
  }
  comm::ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) override {
    groups_.push_back(std::make_shared<NotedGroup>(world_.new_group(name, ranks), diary_));
    return groups_.back();
  }
  void send(int peer, const c10::IValue& value, int tag) override {
    world_.send(peer, value, tag);
  }
  c10::IValue receive(int peer, int tag) override {
    return world_.receive(peer, tag);
  }
  [[noreturn]] void abort(const std::string& message, int code) override {
    world_.abort(message, code);
    std::terminate(); // The compiler does not know that a virtual function stays away.
  }
  void restart() {
    diary_.clear();
    for (const auto& group : groups_) {
      group->restart();
    }
  }

 private:
  comm::World& world_;
  Diary& diary_;
  std::vector<std::shared_ptr<NotedGroup>> groups_;
};

/// Panels of that line travel under the product before theirs.
void require_panels_ahead(const Diary& diary, const std::string& line, int steps) {
  for (int l = 0; l + 1 < steps; ++l) {
    const std::string next = line + std::to_string(l + 1);
    diary.require_order(next + " starts", tessera::str("product ", l));
    diary.require_order(tessera::str("product ", l), next + " is awaited");
  }
}

/// Partial results of that line travel under the product after theirs.
void require_sums_behind(const Diary& diary, const std::string& line, int steps) {
  for (int l = 0; l + 1 < steps; ++l) {
    const std::string sum = line + std::to_string(l);
    diary.require_order(sum + " starts", tessera::str("product ", l + 1));
    diary.require_order(tessera::str("product ", l + 1), sum + " is awaited");
  }
}

void products_overlap(comm::World& plain_world, comm::ProcessGroup& group) {
  Diary diary;
  NotedWorld world(plain_world, diary);
  MeshOptions options;
  options.shared_memory = false;
  const MeshPtr mesh = Mesh::make(world, group, options);
  constexpr std::int64_t kSize = 12;
  const MeshBlocks inner(*mesh, kSize);
  const int steps = static_cast<int>(inner.panels().size());
  const at::Tensor block = at::ones({kSize / mesh->rows(), kSize / mesh->columns()});
  const at::Tensor out = at::empty_like(block);
  for (const Form form : {Form::kAB, Form::kABt, Form::kAtB}) {
    world.restart();
    multiply(*mesh, form, block, block, WeightLayout(inner), out, /*accumulate=*/false);
    cases::require_close(out, at::full_like(out, kSize), 0, "the product");
    cases::require(
        diary.products() == steps,
        tessera::str(diary.products(), " products in ", steps, " steps"));
    if (moves_a(form)) {
      require_panels_ahead(diary, "row ", steps);
    }
    if (moves_b(form)) {
      require_panels_ahead(diary, "column ", steps);
    }
    if (adds_parts(form)) {
      require_sums_behind(diary, form == Form::kABt ? "row " : "column ", steps);
    }
  }
}

class Overlap : public ::testing::TestWithParam<int> {};

TEST_P(Overlap, PanelsTravelWhileARankMultiplies) {
  EXPECT_EQ(run_on_ranks(GetParam(), products_overlap), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Overlap, ::testing::Values(4, 6, 9, 16));

} // namespace
} // namespace tessera::nn::summa
