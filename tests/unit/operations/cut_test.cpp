#include "tessera/operations/cut.h"

#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

#include "tests/unit/operations/graphs.h"

namespace tessera::operations {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Cut cut_of(const Graph& graph, const CutOptions& options) {
  return cut(graph, make_units(graph), options);
}

Problem problem_of(const Graph& graph, const CutOptions& options) {
  const Units units = make_units(graph);
  return make_problem(graph, units, make_groups(graph, units), options);
}

// Pieces of the operations of one part, through tensors alone.
int pieces(const Graph& graph, const std::vector<int>& parts, int part) {
  DisjointSets sets(static_cast<int>(parts.size()));
  std::set<int> roots;
  for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
    for (const int before : predecessors(graph, i)) {
      if (parts[i] == part && parts[before] == part) {
        sets.join(i, before);
      }
    }
  }
  for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
    if (parts[i] == part) {
      roots.insert(sets.find(i));
    }
  }
  return static_cast<int>(roots.size());
}

TEST(Cut, AChainIsCutInTheMiddle) {
  const Cut found = cut_of(chain({8, 8, 8, 8, 8, 8}), {.parts = 2});
  EXPECT_THAT(found.part_of_operation, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_EQ(found.crossing_bytes, 8);
  EXPECT_DOUBLE_EQ(found.imbalance, 1);
}

TEST(Cut, AmongEvenDivisionsTheOneWithFewestBytes) {
  // Nothing says which of the light operations without variables goes where, but the bytes.
  GraphOf made;
  const int a = made.add({}, 100, 10);
  const int b = made.add({a}, 4);
  const int c = made.add({b}, 100);
  made.graph.results = {made.add({c}, 100, 10)};
  const Cut found = cut_of(made.graph, {.parts = 2});
  EXPECT_THAT(found.part_of_operation, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(found.crossing_bytes, 4);
}

TEST(Cut, ATensorCrossesOnceForEveryPartThatReadsIt) {
  GraphOf made;
  const int a = made.add({}, 50, 10);
  made.add({a}, 1, 5);
  made.add({a}, 1, 5);
  made.add({a}, 1, 10);
  const Problem problem = problem_of(made.graph, {.parts = 3});
  EXPECT_EQ(problem.score({0, 1, 1, 2}).bytes, 100);
  EXPECT_EQ(problem.score({0, 1, 1, 1}).bytes, 50);
}

TEST(Cut, BytesOfVariablesOrNumbersAreBalanced) {
  // A great variable, and eleven small ones behind it.
  GraphOf made;
  int last = made.add({}, 1, 1100);
  for (int i = 0; i < 11; ++i) {
    last = made.add({last}, 1, 100);
  }
  const Cut memory = cut_of(made.graph, {.parts = 2, .balance = Balance::kVariables});
  EXPECT_EQ(memory.part_of_operation[0], 0);
  EXPECT_EQ(memory.part_of_operation[1], 1);
  const Cut speed = cut_of(made.graph, {.parts = 2, .balance = Balance::kWork});
  EXPECT_EQ(speed.part_of_operation[5], 0);
  EXPECT_EQ(speed.part_of_operation[6], 1);
}

TEST(Cut, PartsAreConnectedUnlessThatIsNotAsked) {
  // A chain with great tensors at both ends' neighbours: the cheapest even division takes the ends.
  GraphOf made;
  const int a = made.add({}, 1, 10);
  const int b = made.add({a}, 90, 10);
  const int c = made.add({b}, 1, 10);
  made.add({c}, 1, 10);
  const Cut apart = cut_of(made.graph, {.parts = 2, .contiguous = false});
  EXPECT_THAT(apart.part_of_operation, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(apart.crossing_bytes, 2);
  const Cut connected = cut_of(made.graph, {.parts = 2});
  for (const int part : {0, 1}) {
    EXPECT_EQ(pieces(made.graph, connected.part_of_operation, part), 1);
  }
}

TEST(Cut, EveryPartGetsVariablesWhereThereAreEnough) {
  // Bytes alone would leave the third part empty.
  const Graph graph = [] {
    GraphOf made;
    const int a = made.add({}, 1, 1000);
    const int b = made.add({a}, 1000, 1);
    made.add({b}, 1000, 1);
    return made.graph;
  }();
  EXPECT_THAT(cut_of(graph, {.parts = 3}).part_of_operation, ElementsAre(0, 1, 2));
}

TEST(Cut, GroupsStayTogether) {
  Graph graph = chain({8, 8, 8, 8});
  graph.operations[3].variables = {0}; // the first's
  graph.variables.pop_back();
  const Cut found = cut_of(graph, {.parts = 2, .contiguous = false});
  EXPECT_EQ(found.groups, 3);
  EXPECT_EQ(found.part_of_operation[0], found.part_of_operation[3]);
}

TEST(Cut, PlacedVariablesStay) {
  Graph graph = chain({8, 8, 8, 8});
  const Cut found = cut_of(graph, {.parts = 2, .part_of_variable = {1, 1, 0, 0}});
  EXPECT_THAT(found.part_of_operation, ElementsAre(1, 1, 0, 0));
}

TEST(Cut, WhatIsFreeGoesToThePlaced) {
  GraphOf made;
  const int a = made.add({}, 100, 10);
  const int b = made.add({a}, 4);
  made.add({b}, 100, 10);
  const Cut found = cut_of(made.graph, {.parts = 2, .part_of_variable = {0, 1}});
  EXPECT_THAT(found.part_of_operation, ElementsAre(0, 0, 1));
}

TEST(Cut, NamesWhatIsPlacedApartAndMustBeTogether) {
  Graph graph = chain({8, 8});
  graph.together = {{{0, 1}, "tessera::colocation(\"both\")"}};
  try {
    cut_of(graph, {.parts = 2, .part_of_variable = {0, 1}});
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 (where 'm0.weight' is)"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 (where 'm1.weight' is)"));
    EXPECT_THAT(error.what(), HasSubstr("are in tessera::colocation(\"both\")"));
  }
}

void wish(Graph& graph, int operation, int part) {
  graph.operations[operation].part = part;
  graph.operations[operation].placed_by = "tessera::partition(" + std::to_string(part) + ")";
}

TEST(Cut, WishedOperationsAreWhereTheyWereToldAndTheRestIsDividedAroundThem) {
  Graph graph = chain({8, 8, 8, 8, 8, 8});
  wish(graph, 0, 1);
  const Cut found = cut_of(graph, {.parts = 2});
  EXPECT_THAT(found.part_of_operation, ElementsAre(1, 1, 1, 0, 0, 0));
  EXPECT_DOUBLE_EQ(found.imbalance, 1) << "the wish moves names, not the balance";
  wish(graph, 5, 1);
  EXPECT_THAT(cut_of(graph, {.parts = 2}).part_of_operation, ElementsAre(1, 0, 0, 0, 1, 1))
      << "what was wished to a part counts as connected";
}

TEST(Cut, WishesInALongChainKeepTheBalance) {
  Graph graph = chain(std::vector<std::int64_t>(60, 8));
  wish(graph, 5, 2);
  wish(graph, 30, 0);
  wish(graph, 31, 0);
  wish(graph, 55, 2);
  const Cut found = cut_of(graph, {.parts = 3});
  const std::map<int, int> wishes{{5, 2}, {30, 0}, {31, 0}, {55, 2}};
  for (const auto& [operation, part] : wishes) {
    EXPECT_EQ(found.part_of_operation[operation], part) << operation;
  }
  EXPECT_LE(found.imbalance, 1.2) << ::testing::PrintToString(found.part_of_operation);
  EXPECT_LE(found.crossing_bytes, 5 * 8);
  EXPECT_EQ(cut_of(graph, {.parts = 3}).part_of_operation, found.part_of_operation);
}

TEST(Cut, OneWishedPlaceTakesItsGroupAlong) {
  Graph graph = chain({8, 8, 8, 8});
  graph.together = {{{0, 3}, "tessera::colocation(\"ends\")"}};
  wish(graph, 3, 1);
  const Cut found = cut_of(graph, {.parts = 2, .contiguous = false});
  EXPECT_EQ(found.part_of_operation[0], 1);
  EXPECT_EQ(found.part_of_operation[3], 1);
  EXPECT_EQ(found.part_of_operation[1], 0);
}

TEST(Cut, WithADefaultPartNothingIsSearchedFor) {
  Graph graph = chain({8, 8, 8, 8});
  wish(graph, 2, 1);
  const Cut found = cut_of(graph, {.parts = 3, .default_part = 2});
  EXPECT_THAT(found.part_of_operation, ElementsAre(2, 2, 1, 2));
  EXPECT_THROW(cut_of(graph, {.parts = 2, .default_part = 2}), PlanError);
}

TEST(Cut, NamesTwoWishesThatExcludeEachOther) {
  Graph graph = chain({8, 8, 8});
  graph.operations[2].variables = {0}; // the first's
  graph.variables.pop_back();
  wish(graph, 0, 0);
  wish(graph, 2, 1);
  try {
    cut_of(graph, {.parts = 2});
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("operation 0 (op0) is to run on rank 0 (tessera::partition(0)) and operation 2 "
                  "(op2) on rank 1 (tessera::partition(1)), but they have to be on one rank: "
                  "operation 0 (op0) and operation 2 (op2) use 'm0.weight'"));
  }
  wish(graph, 2, 7);
  EXPECT_THROW(cut_of(graph, {.parts = 2}), PlanError) << "there is no such rank";
}

// The multilevel method against all divisions, on graphs small enough for both.
TEST(Cut, MultilevelIsNeverBetterThanAllAndSeldomMuchWorse) {
  std::mt19937 random(3);
  int best = 0;
  const int graphs = 20;
  for (int g = 0; g < graphs; ++g) {
    GraphOf made;
    for (int i = 0; i < 9; ++i) {
      std::vector<int> reads;
      for (int j = std::max(0, i - 3); j < i; ++j) {
        if (random() % 2 == 0 || j == i - 1) {
          reads.push_back(j);
        }
      }
      made.add(reads, 1 + static_cast<int>(random() % 100), 100);
    }
    Problem problem = problem_of(made.graph, {.parts = 3});
    const Score exact = problem.score(try_all(problem));
    std::vector<int> division = divide_multilevel(problem);
    improve(problem, division);
    const Score other = problem.score(division);
    EXPECT_FALSE(other < exact) << "graph " << g;
    best += exact == other ? 1 : 0;
  }
  EXPECT_GE(best, graphs / 2);
}

TEST(Cut, ALongChainIsCutAtItsThinPlaces) {
  std::vector<std::int64_t> bytes(100, 1000);
  bytes[24] = bytes[49] = bytes[74] = 10;
  const Graph graph = chain(bytes);
  const Cut found = cut_of(graph, {.parts = 4});
  EXPECT_EQ(found.crossing_bytes, 30);
  EXPECT_LE(found.imbalance, 1.1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(found.part_of_operation[i], i / 25) << i;
  }
  EXPECT_EQ(cut_of(graph, {.parts = 4}).part_of_operation, found.part_of_operation);
}

TEST(Cut, ManyBlocksWithResiduals) {
  // 40 blocks of four operations, each with a sum around it.
  GraphOf made;
  int last = made.add({}, 64, 100);
  for (int block = 0; block < 40; ++block) {
    const int a = made.add({last}, 256, 400);
    const int b = made.add({a}, 256);
    const int c = made.add({b}, 64, 400);
    last = made.add({last, c}, 64);
  }
  for (const Balance balance : {Balance::kVariables, Balance::kWork}) {
    const Cut found = cut_of(made.graph, {.parts = 4, .balance = balance});
    EXPECT_LE(found.imbalance, 1.15);
    EXPECT_EQ(found.crossing_bytes, 3 * 64) << "cuts between blocks";
    for (int part = 0; part < 4; ++part) {
      EXPECT_EQ(pieces(made.graph, found.part_of_operation, part), 1);
    }
  }
}

TEST(Cut, WithoutVariablesTheOperationsAreShared) {
  GraphOf made;
  int last = made.add({}, 8);
  for (int i = 1; i < 40; ++i) {
    last = made.add({last}, 8);
  }
  const Cut found = cut_of(made.graph, {.parts = 2});
  EXPECT_LE(found.imbalance, 1.1);
  EXPECT_EQ(found.crossing_bytes, 8);
}

TEST(Cut, CountsDivisions) {
  EXPECT_EQ(divisions(4, 2), 8);
  EXPECT_EQ(divisions(4, 4), 15);
  EXPECT_EQ(divisions(12, 12), 4213597);
}

TEST(Cut, RefusesNoParts) {
  EXPECT_THROW(cut_of(chain({1}), {.parts = 0}), PlanError);
}

} // namespace
} // namespace tessera::operations
