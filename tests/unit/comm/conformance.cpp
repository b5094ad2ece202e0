#include "conformance.h"

#include <stdexcept>

#include "tessera/base/error.h"

#include "recovery_cases.h"

namespace tessera::comm::conformance {

namespace {

const std::vector<at::ScalarType> kTypes =
    {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte};

std::vector<int> everybody(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

/// Empty, one, odd, around the MPI engine's flat limit (the other's lies above
/// it, below the last), more than one round of a slot.
std::vector<std::int64_t> sizes_for(at::ScalarType type) {
  const auto width = static_cast<std::int64_t>(c10::elementSize(type));
  std::vector<std::int64_t> sizes = {0, 1, 37, 16384 / width + 3};
  if (type == at::kFloat || type == at::kBFloat16) {
    sizes.push_back(16384 / width);
    sizes.push_back(600007 / width);
  }
  return sizes;
}

std::vector<at::Tensor>
inputs_of(const ProcessGroup& group, std::int64_t count, at::ScalarType type, std::int64_t seed) {
  std::vector<at::Tensor> inputs;
  for (const int rank : group.ranks()) {
    inputs.push_back(make_input(rank, count, type, seed));
  }
  return inputs;
}

at::Tensor reduced(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  at::Tensor result = inputs.at(0).to(at::kDouble);
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    const at::Tensor next = inputs[i].to(at::kDouble);
    switch (op) {
      case ReduceOp::kSum:
        result = result + next;
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
    }
  }
  return result.to(inputs[0].scalar_type());
}

void require_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  require(
      found.scalar_type() == expected.scalar_type() && at::equal(found, expected),
      tessera::str(what, ": the result differs from the reference"));
}

at::Tensor slice(const at::Tensor& tensor, int index, std::int64_t count) {
  return tensor.narrow(0, index * count, count);
}

void check_all_operations(ProcessGroup& group) {
  const int n = group.size();
  const int me = group.rank();
  std::int64_t seed = 1;
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t count : sizes_for(type)) {
      const std::string what =
          tessera::str(group.name(), ' ', at::toString(type), " x ", count, ": ");
      // The way of the data is the same for every operator.
      const std::vector<ReduceOp> ops =
          count > 64 ? std::vector<ReduceOp>{ReduceOp::kSum}
                     : std::vector<ReduceOp>{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
      for (const ReduceOp op : ops) {
        const auto inputs = inputs_of(group, count, type, ++seed);
        const at::Tensor expected = reduced(inputs, op);
        at::Tensor tensor = inputs[static_cast<std::size_t>(me)].clone();
        group.all_reduce(tensor, op);
        require_equal(tensor, expected, what + "all_reduce");
        if (op == ReduceOp::kSum && tensor.is_floating_point()) {
          tensor = inputs[static_cast<std::size_t>(me)].clone();
          group.scaled_sum_async(tensor, 0.5)->wait();
          require_equal(tensor, expected * 0.5, what + "scaled_sum");
        }

        const int root = static_cast<int>(seed % n);
        tensor = inputs[static_cast<std::size_t>(me)].clone();
        group.reduce(tensor, root, op);
        require_equal(
            tensor, me == root ? expected : inputs[static_cast<std::size_t>(me)], what + "reduce");

        const auto wide = inputs_of(group, count * n, type, ++seed);
        at::Tensor part = at::empty({count}, wide[0].options());
        group.reduce_scatter(part, wide[static_cast<std::size_t>(me)], op);
        require_equal(part, slice(reduced(wide, op), me, count), what + "reduce_scatter");
      }
      const auto inputs = inputs_of(group, count, type, ++seed);
      at::Tensor gathered = at::empty({n * count}, inputs[0].options());
      group.all_gather(gathered, inputs[static_cast<std::size_t>(me)]);
      require_equal(gathered, at::cat(inputs), what + "all_gather");

      for (int root = 0; root < n; ++root) {
        at::Tensor tensor = inputs[static_cast<std::size_t>(me)].clone();
        group.broadcast(tensor, root);
        require_equal(tensor, inputs[static_cast<std::size_t>(root)], what + "broadcast");
      }

      const auto wide = inputs_of(group, count * n, type, ++seed);
      at::Tensor swapped = at::empty({n * count}, wide[0].options());
      group.all_to_all(swapped, wide[static_cast<std::size_t>(me)]);
      std::vector<at::Tensor> slices;
      for (int peer = 0; peer < n; ++peer) {
        slices.push_back(slice(wide[static_cast<std::size_t>(peer)], me, count));
      }
      require_equal(swapped, at::cat(slices), what + "all_to_all");
    }
  }
  group.barrier();
}

void operations_of_the_whole_world(World& world) {
  const auto group = world.new_group("everybody", everybody(world));
  check_all_operations(*group);
}

void operations_of_subgroups(World& world) {
  // Two groups that share rank 0 and leave others out.
  for (const int stride : {1, 2}) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size() && ranks.size() < 3; rank += stride) {
      ranks.push_back(rank);
    }
    for (const int rank : ranks) {
      if (rank == world.rank()) {
        check_all_operations(*world.new_group(tessera::str("stride", stride), ranks));
      }
    }
  }
}

void group_of_one(World& world) {
  const auto group = world.new_group("alone", {world.rank()});
  check_all_operations(*group);
}

void random_floats_give_equal_bits(World& world) {
  const auto group = world.new_group("bits", everybody(world));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto generator = at::detail::createCPUGenerator(100 + rank);
      inputs.push_back(at::randn({300001}, generator).to(type));
    }
    // The reference: f32, in the order of ranks, rounded once.
    at::Tensor expected = inputs[0].to(at::kFloat);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      expected = expected + inputs[i].to(at::kFloat);
    }
    expected = expected.to(type);
    for (int repeat = 0; repeat < 3; ++repeat) {
      at::Tensor tensor = inputs[static_cast<std::size_t>(world.rank())].clone();
      group->all_reduce(tensor);
      require_equal(tensor, expected, "bits of a sum");
    }
  }
}

void asynchronous_operations_of_several_groups(World& world) {
  // Every pair has a group, and all are in flight at once, in an order that
  // differs from rank to rank.
  std::vector<ProcessGroupPtr> groups;
  for (int a = 0; a < world.size(); ++a) {
    for (int b = a + 1; b < world.size(); ++b) {
      if (a == world.rank() || b == world.rank()) {
        groups.push_back(world.new_group(tessera::str("pair", a, b), {a, b}));
      }
    }
  }
  const auto all = world.new_group("all", everybody(world));
  groups.push_back(all);
  if (world.rank() % 2 == 1) {
    std::reverse(groups.begin(), groups.end());
  }
  constexpr int kRounds = 5;
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> expected;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& group : groups) {
      const auto inputs = inputs_of(*group, 100000 + round, at::kFloat, 7 + round);
      tensors.push_back(inputs[static_cast<std::size_t>(group->rank())].clone());
      expected.push_back(reduced(inputs, ReduceOp::kSum));
      works.push_back(group->all_reduce_async(tensors.back(), ReduceOp::kSum));
    }
  }
  // A blocking call takes its place behind what is queued.
  at::Tensor last = at::ones({3});
  all->all_reduce(last);
  require_equal(last, at::full({3}, double(all->size())), "queued");
  for (std::size_t i = 0; i < works.size(); ++i) {
    works[i]->wait();
    require(works[i]->done(), "done() after wait()");
    require_equal(tensors[i], expected[i], "asynchronous all_reduce");
  }
}

void non_participants_go_on(World& world) {
  if (world.rank() == 0) {
    return; // neither makes the group nor waits for it
  }
  std::vector<int> ranks = everybody(world);
  ranks.erase(ranks.begin());
  const auto group = world.new_group("without0", ranks);
  at::Tensor tensor = at::full({1000}, double(world.rank()));
  group->all_reduce(tensor);
  double sum = 0;
  for (const int rank : ranks) {
    sum += rank;
  }
  require_equal(tensor, at::full({1000}, sum), "all_reduce without rank 0");
}

template <typename ErrorType, typename Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const ErrorType& e) {
    return e.what();
  }
  throw std::runtime_error("an error was expected, nothing was thrown");
}

void require_contains(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, tessera::str("'", part, "' is not in: ", text));
}

void bad_tensors_are_refused(World& world) {
  const auto group = world.new_group("picky", everybody(world));
  const at::Tensor matrix = at::zeros({4, 6});
  require_contains(
      message_of<ShapeError>([&] { group->all_reduce(matrix.t()); }), "not contiguous");
  require_contains(message_of<ShapeError>([&] { group->all_reduce(at::Tensor()); }), "undefined");
  require_contains(
      message_of<ShapeError>([&] { group->all_reduce(matrix.to(at::kComplexFloat)); }),
      "not supported");
  require_contains(
      message_of<ShapeError>([&] { group->all_gather(at::zeros({5}), at::zeros({3})); }),
      "3 elements");
  require_contains(
      message_of<ShapeError>(
          [&] { group->all_gather(at::zeros({3 * group->size()}, at::kDouble), at::zeros({3})); }),
      "dtype");
  require_contains(message_of<CommError>([&] { group->broadcast(matrix, group->size()); }), "root");
  require_contains(message_of<CommError>([&] { world.new_group("twisted", {1, 0}); }), "ascending");
  // None of this has harmed the group.
  at::Tensor tensor = at::ones({2});
  group->all_reduce(tensor);
  require_equal(tensor, at::full({2}, double(group->size())), "after refusals");
}

void traffic_follows_the_formulas(World& world) {
  const auto group = world.new_group("counted", everybody(world));
  const std::int64_t n = group->size();
  const std::int64_t count = 12 * n;
  Traffic& traffic = group->traffic();
  const auto require_bytes = [&](std::int64_t bytes, const char* what) {
    require(
        traffic.bytes.exchange(0) == bytes && traffic.calls.exchange(0) == 1,
        tessera::str("traffic of ", what));
  };
  const at::Tensor long_side = at::zeros({count});
  const at::Tensor short_side = at::zeros({count / n});
  group->all_reduce(long_side);
  require_bytes(2 * (n - 1) * (count / n) * 4, "all_reduce");
  group->all_gather(long_side, short_side);
  require_bytes((n - 1) * (count / n) * 4, "all_gather");
  group->reduce_scatter(short_side, long_side);
  require_bytes((n - 1) * (count / n) * 4, "reduce_scatter");
  group->all_to_all(at::zeros({count}), long_side);
  require_bytes((n - 1) * (count / n) * 4, "all_to_all");
  group->broadcast_async(long_side, 0)->wait();
  require_bytes(group->rank() == 0 ? (n - 1) * count * 4 : 0, "broadcast");
  group->reduce(long_side, 0);
  require_bytes(group->rank() == 0 ? 0 : count * 4, "reduce");
  group->barrier();
  require_bytes(0, "barrier");
}

void mesh_groups_follow_the_layout(World& world) {
  const int n = world.size();
  const topology::RankLayout layout(
      {.pipeline = n % 2 == 0 ? 2 : 1, .tensor = n % 2 == 0 ? n / 2 : n, .reduced_data = 1},
      topology::PlacementStrategy("cluster"));
  const MeshGroups groups(world, layout);
  for (const topology::Group kind : topology::kAllGroups) {
    ProcessGroup& group = groups.at(kind);
    require(
        group.name() == topology::name_of(kind) &&
            group.ranks() == layout.members(kind, world.rank()) &&
            group.rank() == layout.rank_in(kind, world.rank()),
        "a group of the mesh differs from the layout");
    at::Tensor tensor = at::ones({5});
    group.all_reduce(tensor);
    require_equal(tensor, at::full({5}, double(group.size())), group.name());
  }
  const std::string refusal = message_of<ConfigError>([&] {
    const MeshGroups wrong(
        world,
        topology::RankLayout(
            {.pipeline = n + 1, .tensor = 1, .reduced_data = 1},
            topology::PlacementStrategy("cluster")));
  });
  require_contains(refusal, tessera::str("pipeline ", n + 1, " x tensor 1"));
  require_contains(refusal, tessera::str("the world has ", n));
}

void late_rank_is_named(World& world) {
  const auto group = world.new_group("late", everybody(world));
  const int last = world.size() - 1;
  if (world.rank() == last) {
    return; // never comes
  }
  const auto start = std::chrono::steady_clock::now();
  const WorkPtr first = group->all_reduce_async(at::ones({1000}), ReduceOp::kSum);
  const WorkPtr second = group->barrier_async();
  const std::string text = message_of<CommError>([&] { first->wait(); });
  require_contains(text, "all_reduce #1");
  require_contains(text, "group 'late'");
  require_contains(text, tessera::str("rank ", last));
  // What was queued, and what is called later, fails with the first reason.
  require_contains(message_of<CommError>([&] { second->wait(); }), "all_reduce #1");
  require_contains(
      message_of<CommError>([&] { group->all_reduce(at::ones({1})); }), "stays unusable");
  require(
      std::chrono::steady_clock::now() - start < 5 * world.options().timeout,
      "the error came too late");
}

void object_that_does_not_come(World& world) {
  const int next = (world.rank() + 1) % world.size();
  const std::string text = message_of<CommError>([&] { world.receive(next, 9); });
  require_contains(text, tessera::str("no object came from rank ", next));
  require_contains(text, "tag 9");
  require_contains(
      message_of<CommError>([&] { world.send(world.size(), c10::IValue(1)); }), "the world has");
}

void dropped_group_finishes_its_work(World& world) {
  at::Tensor tensor = at::ones({200000});
  {
    const auto group = world.new_group("dropped", everybody(world));
    group->all_reduce_async(tensor, ReduceOp::kSum);
  } // nobody waited
  require_equal(tensor, at::full({200000}, double(world.size())), "dropped group");
}

c10::IValue nested_value(int rank) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("rank", rank);
  dict.insert("half", at::full({2, 3}, rank, at::kHalf));
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(c10::IValue("text"));
  list.push_back(c10::IValue(2.5));
  list.push_back(c10::IValue());
  std::vector<c10::IValue> parts = {
      c10::IValue(at::arange(12).view({3, 4}).t()),
      c10::IValue(at::empty({0, 7})),
      c10::IValue(at::Tensor()),
      c10::IValue(dict),
      c10::IValue(list),
      c10::IValue(std::vector<at::Tensor>{at::ones({1}, at::kBool)}),
      c10::IValue(std::vector<std::int64_t>{1, 2, rank}),
      c10::IValue(true)};
  return c10::ivalue::Tuple::create(std::move(parts));
}

std::vector<c10::IValue> elements_of(const c10::IValue& value) {
  const auto& elements = value.toTupleRef().elements();
  return std::vector<c10::IValue>(elements.begin(), elements.end());
}

void require_nested(const c10::IValue& value, int rank) {
  // Copied: GCC takes elements() for the inline form of three at most.
  const std::vector<c10::IValue> parts = elements_of(value);
  require(parts.size() == 8, "number of parts");
  require_equal(parts[0].toTensor(), at::arange(12).view({3, 4}).t(), "transposed");
  require(parts[1].toTensor().sizes() == at::IntArrayRef({0, 7}), "empty tensor");
  require(!parts[2].toTensor().defined(), "undefined tensor");
  const auto dict = parts[3].toGenericDict();
  require(dict.at("rank").toInt() == rank, "number in a dict");
  require_equal(dict.at("half").toTensor(), at::full({2, 3}, rank, at::kHalf), "half");
  const auto list = parts[4].toList();
  require(
      list.get(0).toStringRef() == "text" && list.get(1).toDouble() == 2.5 && list.get(2).isNone(),
      "list");
  require_equal(parts[5].toTensorVector().at(0), at::ones({1}, at::kBool), "bools");
  require(parts[6].toIntVector().at(2) == rank, "list of numbers");
  require(parts[7].toBool(), "bool");
}

void objects_pass(World& world) {
  const int n = world.size();
  const int next = (world.rank() + 1) % n;
  const int previous = (world.rank() + n - 1) % n;
  // Everybody sends first: a send must not wait for its receiver, however
  // large the value.
  world.send(next, at::full({1 << 20}, world.rank(), at::kInt), 5);
  world.send(next, nested_value(world.rank()), 3);
  world.send(next, c10::IValue(1), 4);
  world.send(next, c10::IValue(2), 4);
  require(world.receive(previous, 4).toInt() == 1, "first of tag 4");
  require(world.receive(previous, 4).toInt() == 2, "second of tag 4");
  require_nested(world.receive(previous, 3), previous);
  require_equal(
      world.receive(previous, 5).toTensor(),
      at::full({1 << 20}, previous, at::kInt),
      "large tensor");
}

void all_dtypes_pass(World& world) {
  const int n = world.size();
  for (const at::ScalarType type :
       {at::kByte,
        at::kChar,
        at::kShort,
        at::kInt,
        at::kLong,
        at::kHalf,
        at::kFloat,
        at::kDouble,
        at::kComplexFloat,
        at::kComplexDouble,
        at::kBool,
        at::kBFloat16}) {
    const at::Tensor tensor = at::ones({5}).to(type);
    world.send((world.rank() + 1) % n, tensor);
    require_equal(world.receive((world.rank() + n - 1) % n).toTensor(), tensor, at::toString(type));
  }
}

void object_collectives(World& world) {
  const auto group = world.new_group("objects", everybody(world));
  const int last = world.size() - 1;
  require_nested(
      broadcast_object(
          world, *group, world.rank() == last ? nested_value(last) : c10::IValue(), last),
      last);
  const auto all = all_gather_object(world, *group, nested_value(world.rank()));
  require(all.size() == static_cast<std::size_t>(world.size()), "all_gather");
  for (int rank = 0; rank < world.size(); ++rank) {
    require_nested(all[static_cast<std::size_t>(rank)], rank);
  }
  const auto some = gather_object(world, *group, world.rank(), last);
  require(some.size() == (world.rank() == last ? static_cast<std::size_t>(last) + 1 : 0), "gather");
}

} // namespace

void require(bool condition, const std::string& text) {
  if (!condition) {
    throw std::runtime_error(text);
  }
}

at::Tensor make_input(int rank, std::int64_t count, at::ScalarType type, std::int64_t seed) {
  return at::arange(count).mul(31 + seed).add(rank * 17 + seed).remainder(53).to(type);
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> own = {
      {"operations_of_the_whole_world", 1, operations_of_the_whole_world},
      {"operations_of_subgroups", 3, operations_of_subgroups},
      {"group_of_one", 1, group_of_one},
      {"random_floats_give_equal_bits", 1, random_floats_give_equal_bits},
      {"asynchronous_operations_of_several_groups", 2, asynchronous_operations_of_several_groups},
      {"non_participants_go_on", 2, non_participants_go_on},
      {"bad_tensors_are_refused", 2, bad_tensors_are_refused},
      {"traffic_follows_the_formulas", 1, traffic_follows_the_formulas},
      {"mesh_groups_follow_the_layout", 1, mesh_groups_follow_the_layout},
      {"objects_pass", 1, objects_pass},
      {"all_dtypes_pass", 1, all_dtypes_pass},
      {"object_collectives", 1, object_collectives},
      {"dropped_group_finishes_its_work", 1, dropped_group_finishes_its_work},
      {"late_rank_is_named", 2, late_rank_is_named, std::chrono::milliseconds(2000)},
      {"object_that_does_not_come", 2, object_that_does_not_come, std::chrono::milliseconds(500)},
  };
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = own;
    const std::vector<Case>& recovery = recovery_cases();
    all.insert(all.end(), recovery.begin(), recovery.end());
    return all;
  }();
  return cases;
}

} // namespace tessera::comm::conformance
