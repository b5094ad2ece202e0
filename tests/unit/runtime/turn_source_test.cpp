// Which task runs next, asked of each TurnSource without a server around it.
#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/runtime/dynamic_turns.h"
#include "tessera/runtime/ordered_turns.h"
#include "tessera/runtime/replay/replayed_turns.h"
#include "tessera/runtime/stream_seed.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::runtime::testing {
namespace {

using State = schedule::Progress::State;
using ::testing::HasSubstr;

/// Keeps the fixed fields of what is sent.
class NotingTransport : public transport::Transport {
 public:
  void send(int, const transport::Header& header, const c10::IValue&) override {
    sent.push_back(from_header(header));
  }
  void send_packed(int, const transport::Header& header, const std::vector<at::Tensor>&) override {
    sent.push_back(from_header(header));
  }
  std::optional<transport::Parcel> try_receive() override {
    return std::nullopt;
  }
  std::optional<transport::Parcel> receive(std::chrono::milliseconds) override {
    return std::nullopt;
  }
  transport::Counters counters() const override {
    return {};
  }
  std::vector<Fields> sent;
};

class NoControl : public StepControl {
 public:
  void pause() override {}
  void wait_for_answer(Task&, const Fields&, int) override {}
  void abort(std::string text) override {
    error = std::move(text);
  }
  bool aborted() const override {
    return !error.empty();
  }
  std::string error;
};

/// What a TurnSource of one rank of a two-rank pipeline sees.
struct Board {
  explicit Board(int pp_rank, int microbatches)
      : net(make_net()),
        table(net.ptr(), partition_of(2), pp_rank),
        modules(pp_rank),
        schedule(schedule::make_schedule("interleaved", microbatches, 2)),
        tasks(microbatches),
        workers([](std::shared_ptr<Task>) { return nullptr; }) {
    modules.add(table, "Net");
    context.modules = &modules;
    context.transport = &transport;
    context.pp_ranks = {0, 1};
    context.schedule = schedule.get();
    context.rank = pp_rank;
    work.microbatches = microbatches;
    work.serial = 7;
  }

  /// A request that has come, named by its id.
  std::shared_ptr<Task> ready(std::uint64_t id, int microbatch, Phase phase) {
    auto task = std::make_shared<Task>();
    task->kind = Task::Kind::kCall;
    task->id = id;
    task->request.module = modules.id_of(*net->outer);
    task->request.microbatch = microbatch;
    task->request.phase = phase;
    tasks.ready.push_back(task);
    return task;
  }
  /// A begun task, its answer come or not.
  std::shared_ptr<Task>
  suspended(std::uint64_t id, int microbatch, bool answered, Phase phase = Phase::kForward) {
    const auto task = ready(id, microbatch, phase);
    tasks.remove(task);
    task->awaits = 1;
    if (answered) {
      task->response.emplace();
    }
    tasks.suspended.push_back({&workers.idle(), task});
    return task;
  }
  /// A backward that gave way.
  void interrupted(std::uint64_t id, int microbatch) {
    const auto task = suspended(id, microbatch, false, Phase::kBackward);
    task->awaits = 0;
    task->gave_way = true;
  }
  StepResources resources() {
    return {context, work, tasks, control};
  }
  /// Runs turns as they are chosen until there is none; ids of the tasks.
  std::vector<std::uint64_t> run(TurnSource& turns) {
    std::vector<std::uint64_t> ids;
    while (const auto choice = turns.next()) {
      ids.push_back(choice->task->id);
      tasks.remove(choice->task);
    }
    return ids;
  }

  Net net;
  ModuleTable table;
  ModuleDirectory modules;
  NotingTransport transport;
  NoControl control;
  std::unique_ptr<schedule::Schedule> schedule;
  ServerContext context;
  StepWork work;
  StepTasks tasks;
  WorkerPool workers;
};

using Ids = std::vector<std::uint64_t>;

TEST(DynamicTurns, BackwardThenLowMicrobatchesThenBegunTasks) {
  Board board(1, 3);
  board.ready(1, 2, Phase::kForward);
  board.ready(2, 0, Phase::kForward);
  board.ready(3, 1, Phase::kBackward);
  board.suspended(4, 0, true);
  board.suspended(5, 0, false); // cannot go on
  DynamicTurns turns(board.resources());
  EXPECT_EQ(board.run(turns), (Ids{3, 4, 2, 1}));
  EXPECT_EQ(board.tasks.suspended.size(), 1U);
}

TEST(DynamicTurns, TheRootStartsWhatTheScheduleSays) {
  Board board(0, 3);
  DynamicTurns turns(board.resources());
  auto& states = board.tasks.progress.states;
  for (const int microbatch : {0, 1}) {
    const auto choice = turns.next();
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->microbatch, microbatch);
    EXPECT_EQ(choice->phase, Phase::kForward);
    EXPECT_EQ(choice->key, mix(step_function_id(microbatch), 0));
    states[microbatch] = State::kForward;
  }
  EXPECT_FALSE(turns.next()); // two are active
  board.suspended(step_function_id(1), 1, false)->awaits = 0;
  states[1] = State::kReady;
  const auto backward = turns.next();
  ASSERT_TRUE(backward);
  EXPECT_EQ(backward->task->id, step_function_id(1));
  EXPECT_EQ(backward->phase, Phase::kBackward);
  EXPECT_FALSE(turns.done());
  states.assign(3, State::kDone);
  EXPECT_TRUE(turns.done());
}

std::vector<std::uint64_t> awaited_by_others(Board& board, TurnSource& turns) {
  std::vector<std::uint64_t> ids;
  while (const auto choice = turns.awaited()) {
    ids.push_back(choice->task->id);
    board.tasks.remove(choice->task);
    if (choice->task->kind == Task::Kind::kRoot) {
      board.tasks.progress.states[choice->microbatch] = State::kBackward;
    }
  }
  return ids;
}

TEST(DynamicTurns, ABackwardGivesWayToWhatOtherRanksWaitFor) {
  Board board(0, 4);
  auto& states = board.tasks.progress.states;
  states = {State::kBackward, State::kReady, State::kBackward, State::kWaiting};
  DynamicTurns turns(board.resources());
  const auto root = board.suspended(step_function_id(1), 1, false); // the schedule starts it
  root->awaits = 0;
  root->kind = Task::Kind::kRoot;
  board.suspended(2, 2, true); // a forward goes on
  board.suspended(3, 0, true, Phase::kBackward); // its rest is this rank's own
  board.suspended(4, 3, true, Phase::kBackward)->awaited = true;
  board.suspended(5, 0, false); // cannot go on
  board.ready(6, 3, Phase::kForward); // a request
  EXPECT_EQ(awaited_by_others(board, turns), (Ids{step_function_id(1), 4, 2, 6}));
  EXPECT_EQ(board.tasks.suspended.size(), 2U);
}

TEST(DynamicTurns, WhatGaveWayGoesOnWhenNothingMoreIsAwaited) {
  Board board(1, 4);
  DynamicTurns turns(board.resources());
  board.interrupted(1, 2);
  board.interrupted(2, 1);
  board.suspended(3, 3, true); // a forward
  board.suspended(4, 0, true, Phase::kBackward); // its rest is this rank's own
  ASSERT_NE(board.tasks.interrupted(), nullptr);
  EXPECT_EQ(board.tasks.interrupted()->task->id, 2U);
  EXPECT_EQ(board.run(turns), (Ids{3, 4, 2, 1}));
}

/// The channels of a leader and a follower.
struct Replicas {
  Replicas() : worlds(comm::inproc_worlds(2, {})), transports(make_transports()), groups(2) {
    on_ranks(2, [this](int rank) { groups[rank] = worlds[rank]->new_group("order", {0, 1}); });
    for (int rank = 0; rank < 2; ++rank) {
      channels.push_back(std::make_unique<OrderChannel>(*groups[rank], *transports[rank]));
    }
  }
  static std::vector<transport::TransportPtr> make_transports() {
    transport::Options options;
    options.buffer_bytes = 1 << 20;
    return transport::make_inproc_transports(2, options);
  }
  std::vector<comm::WorldPtr> worlds;
  std::vector<transport::TransportPtr> transports;
  std::vector<comm::ProcessGroupPtr> groups;
  std::vector<std::unique_ptr<OrderChannel>> channels;
};

TEST(OrderedTurns, TheFollowerTakesTheLeadersOrderAndNothingElse) {
  constexpr auto kLong = std::chrono::seconds(20);
  Replicas replicas;
  Board first(1, 3);
  Board second(1, 3);
  first.context.order = replicas.channels[0].get();
  second.context.order = replicas.channels[1].get();
  LeaderTurns leader(first.resources());
  FollowerTurns follower(second.resources());

  // At the leader the second microbatch comes first.
  first.ready(2, 1, Phase::kForward);
  EXPECT_EQ(first.run(leader), (Ids{2}));
  first.ready(3, 2, Phase::kForward);
  first.ready(1, 0, Phase::kForward);
  EXPECT_EQ(first.run(leader), (Ids{1, 3}));
  leader.step_ended(false);

  second.ready(1, 0, Phase::kForward);
  second.ready(4, 0, Phase::kBackward); // the leader has no such task
  second.ready(2, 1, Phase::kForward);
  EXPECT_FALSE(follower.next()); // nothing was announced
  for (const std::uint64_t id : {2, 1}) {
    ASSERT_EQ(follower.listen(kLong), TurnSource::Heard::kSomething);
    const auto choice = follower.next();
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->task->id, id);
    second.tasks.remove(choice->task);
  }
  ASSERT_EQ(follower.listen(kLong), TurnSource::Heard::kSomething);
  EXPECT_FALSE(follower.next()); // the third has not come yet
  EXPECT_EQ(follower.listen(kLong), TurnSource::Heard::kNotListening);
  EXPECT_THAT(follower.order_text(), HasSubstr("whose next task has not come here"));
  const auto third = second.ready(3, 2, Phase::kForward);
  EXPECT_EQ(follower.next()->task, third);
  second.tasks.remove(third);

  ASSERT_EQ(follower.listen(kLong), TurnSource::Heard::kSomething); // the end
  const auto left = follower.next();
  ASSERT_TRUE(left && left->refusal);
  EXPECT_EQ(left->task->id, 4U);
  EXPECT_THAT(*left->refusal, HasSubstr("module 'outer', microbatch 0, backward"));
}

TEST(OrderedTurns, NothingGivesWay) {
  Replicas replicas;
  Board board(1, 3);
  board.context.order = replicas.channels[0].get();
  LeaderTurns leader(board.resources());
  board.suspended(1, 1, true);
  EXPECT_FALSE(leader.awaited());
  EXPECT_EQ(board.run(leader), (Ids{1}));
}

constexpr MessageId kFirst{10, CallMessage::kArguments};
constexpr MessageId kSecond{20, CallMessage::kArguments};

std::vector<at::Tensor> one_tensor() {
  return {torch::zeros({2})};
}

/// Of rank 1: the call 10, then the call 20, each with a tensor of rank 0.
StaticProgram program_of_two_calls(const Board& board, bool reports = true) {
  Recording recording;
  RankPlan plan;
  std::vector<Turn> order;
  for (const MessageId& id : {kFirst, kSecond}) {
    RecordedMessage& message = recording.messages[id];
    message.fields.call = id.call;
    message.fields.module = board.modules.id_of(*board.net->outer);
    message.fields.module_mode = ModuleMode::kTraining;
    message.fields.microbatch = id == kFirst ? 1 : 0;
    message.signature = ValueSignature(c10::ivalue::Tuple::create({c10::IValue(one_tensor()[0])}));
    plan.received[id] = {{{PacketPlace{id, 0}}}, true};
    plan.packets[id] = {{Slot{id, 0}}, {1}};
    order.push_back({mix(id.call, 1), 0, Cause::kStart, id});
    plan.turns.push_back({order.back(), {id}});
  }
  plan.reports = reports;
  return StaticProgram(3, std::move(plan), std::move(recording), order, board.modules);
}

TEST(ReplayedTurns, TurnsKeepTheirOrderWhateverArrivesFirst) {
  Board board(1, 2);
  const StaticProgram program = program_of_two_calls(board);
  const auto packets = std::make_shared<PacketStore>(program);
  ReplayedTurns turns(board.resources(), program, packets);

  packets->put(kSecond, one_tensor());
  EXPECT_FALSE(turns.next());
  EXPECT_THAT(turns.waits_for(), HasSubstr("the arguments of module 'outer', microbatch 1"));
  packets->put(kFirst, one_tensor());
  for (const MessageId& id : {kFirst, kSecond}) {
    const auto choice = turns.next();
    ASSERT_TRUE(choice && choice->request);
    EXPECT_EQ(choice->request->call, id.call);
    EXPECT_EQ(choice->request->serial, 7);
    EXPECT_EQ(choice->request->module_mode, ModuleMode::kUnchecked);
    EXPECT_EQ(choice->source, 0);
    EXPECT_FALSE(choice->resumes());
  }
  EXPECT_TRUE(board.transport.sent.empty());
  EXPECT_FALSE(turns.next());
  EXPECT_FALSE(turns.next());
  ASSERT_EQ(board.transport.sent.size(), 1U); // says once that it is done
  EXPECT_EQ(board.transport.sent[0].kind, ServerMessage::kDone);
}

TEST(ReplayedTurns, ABackwardGivesWayToThePlannedTurn) {
  Board board(1, 2);
  const StaticProgram program = program_of_two_calls(board);
  const auto packets = std::make_shared<PacketStore>(program);
  ReplayedTurns turns(board.resources(), program, packets);
  board.interrupted(7, 0);
  packets->put(kSecond, one_tensor());
  EXPECT_FALSE(turns.awaited()); // the order is kept
  ASSERT_TRUE(turns.next());
  EXPECT_EQ(turns.next()->task->id, 7U); // it was not taken out
  packets->put(kFirst, one_tensor());
  EXPECT_EQ(turns.next()->request->call, kFirst.call);
  EXPECT_EQ(turns.awaited()->request->call, kSecond.call);
  const auto last = turns.next();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->task->id, 7U);
  EXPECT_EQ(last->phase, Phase::kBackward);
  EXPECT_TRUE(board.transport.sent.empty()); // it is not done
}

// Where the last turn is what shows that the rank is done, what was interrupted ends before it.
TEST(ReplayedTurns, NothingGivesWayToTheTurnThatShowsTheEnd) {
  Board board(1, 2);
  const StaticProgram program = program_of_two_calls(board, /*reports=*/false);
  const auto packets = std::make_shared<PacketStore>(program);
  ReplayedTurns turns(board.resources(), program, packets);
  board.interrupted(7, 0);
  packets->put(kFirst, one_tensor());
  packets->put(kSecond, one_tensor());
  EXPECT_EQ(turns.awaited()->request->call, kFirst.call);
  EXPECT_FALSE(turns.awaited());
  const auto interrupted = turns.next();
  ASSERT_TRUE(interrupted && interrupted->task);
  EXPECT_EQ(interrupted->task->id, 7U);
}

TEST(ReplayedTurns, ATaskThatWaitsMoreOftenThanRecordedIsAnError) {
  Board board(1, 2);
  const StaticProgram program = program_of_two_calls(board);
  const ReplayedTurns turns(
      board.resources(), program, std::make_shared<const PacketStore>(program));
  Task task;
  task.id = mix(kFirst.call, 1);
  task.turns = 1;
  turns.check_finished(task);
  task.turns = 2;
  EXPECT_THROW(turns.check_finished(task), UserError);
}

TEST(ReplayedTurns, AnAbortedStepHasNoTurns) {
  Board board(1, 2);
  const StaticProgram program = program_of_two_calls(board);
  const auto packets = std::make_shared<PacketStore>(program);
  ReplayedTurns turns(board.resources(), program, packets);
  packets->put(kFirst, one_tensor());
  board.control.abort("a fault");
  EXPECT_FALSE(turns.next());
}

TEST(RequiresGradMask, NamesTheTensorsOfAValueInOrder) {
  const at::Tensor plain = torch::zeros({2});
  const at::Tensor trained = torch::zeros({3}, torch::requires_grad());
  const c10::IValue value =
      c10::ivalue::Tuple::create({c10::IValue(plain), c10::IValue(1), c10::IValue(trained)});
  const RequiresGradMask mask(value);
  EXPECT_EQ(mask.to_text(), "01");
  EXPECT_TRUE(mask.any());
  EXPECT_EQ(RequiresGradMask::from_text("01"), mask);
  ASSERT_EQ(mask.select(value).size(), 1U);
  EXPECT_EQ(mask.select(value)[0].numel(), 3);
  EXPECT_THROW(mask.select(c10::IValue(plain)), InternalError);
  EXPECT_THROW(RequiresGradMask::from_text("02"), InternalError);
  EXPECT_FALSE(RequiresGradMask().any());
}

} // namespace
} // namespace tessera::runtime::testing
