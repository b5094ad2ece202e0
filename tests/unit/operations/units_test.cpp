#include "tessera/operations/units.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"

#include "tests/unit/operations/graphs.h"

namespace tessera::operations {
namespace {

using ::testing::ElementsAre;

TEST(Units, OperationsBetweenInseparableOnesBelongToThem) {
  GraphOf made;
  const int a = made.add({}, 1);
  const int b = made.add({a}, 1);
  const int side = made.add({a}, 1);
  const int c = made.add({b}, 1);
  made.add({c, side}, 1);
  made.graph.inseparable = {{a, c}};
  const Units units = make_units(made.graph);
  EXPECT_THAT(units.unit_of_operation, ElementsAre(0, 0, 1, 0, 2));
  EXPECT_THAT(units.before[2], ElementsAre(0, 1));
}

TEST(Units, TwoInseparablePairsThatCrossBecomeOne) {
  GraphOf made;
  const int a = made.add({}, 1);
  const int b = made.add({a}, 1);
  const int c = made.add({b}, 1);
  made.add({c}, 1);
  made.graph.inseparable = {{0, 2}, {1, 3}};
  EXPECT_THAT(make_units(made.graph).unit_of_operation, ElementsAre(0, 0, 0, 0));
}

TEST(Units, WhatOnlyComesAfterIsKeptInOrder) {
  GraphOf made;
  made.add({}, 1);
  made.add({}, 1);
  made.graph.operations[1].after = {0};
  EXPECT_THAT(make_units(made.graph).before[1], ElementsAre(0));
}

TEST(Groups, ASharedVariableJoinsTwoLayers) {
  // Two layers with two operations each; one operation of each reads the same variable.
  GraphOf made;
  const int a = made.add({}, 1);
  const int b = made.add({a}, 1, 8);
  const int c = made.add({b}, 1);
  const int d = made.add({c}, 1);
  made.graph.operations[a].layer = made.graph.operations[b].layer = "first";
  made.graph.operations[c].layer = made.graph.operations[d].layer = "second";
  EXPECT_THAT(make_groups(made.graph, make_units(made.graph)), ElementsAre(0, 0, 1, 1));
  made.graph.operations[d].variables = {0};
  EXPECT_THAT(make_groups(made.graph, make_units(made.graph)), ElementsAre(0, 0, 0, 0));
}

TEST(Groups, VariablesOfOneModuleAndTheUsersWishes) {
  GraphOf made;
  made.add({}, 1, 8);
  made.add({0}, 1, 8);
  made.add({1}, 1, 8);
  made.add({2}, 1, 8);
  made.graph.variables[2].module = "m0";
  EXPECT_THAT(make_groups(made.graph, make_units(made.graph)), ElementsAre(0, 1, 0, 2));
  made.graph.together = {{{1, 3}, "the user's wish"}};
  EXPECT_THAT(make_groups(made.graph, make_units(made.graph)), ElementsAre(0, 1, 0, 1));
}

TEST(Groups, WhyTwoOperationsAreTogetherIsToldStepByStep) {
  GraphOf made;
  made.add({}, 1, 8);
  made.add({0}, 1, 8);
  made.add({1}, 1);
  made.add({2}, 1);
  made.graph.operations[1].variables.push_back(0);
  made.graph.operations[2].layer = made.graph.operations[3].layer = "head";
  made.graph.together = {{{1, 2}, "tessera::colocation(\"x\")"}};
  EXPECT_EQ(
      why_together(made.graph, make_units(made.graph), 0, 3),
      "operation 0 (op0) and operation 1 (op1) use 'm0.weight'; operation 1 (op1) and operation 2 "
      "(op2) are in tessera::colocation(\"x\"); operation 2 (op2) and operation 3 (op3) belong to "
      "layer 'head'");
}

TEST(OperationGraph, NamesTheOperationThatReadsWhatIsMadeLater) {
  GraphOf made;
  made.add({}, 1);
  made.add({0}, 1);
  made.graph.operations[0].reads = {1};
  try {
    validate(made.graph);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("operation 0 (op0)"));
  }
}

} // namespace
} // namespace tessera::operations
