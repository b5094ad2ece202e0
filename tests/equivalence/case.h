#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/equivalence/course.h"
#include "tests/equivalence/features.h"
#include "tests/equivalence/program.h"
#include "tests/equivalence/strategy.h"

namespace tessera::equivalence {

/// A model, what a script does with it, and how it is laid out.
struct Case {
  Tree tree;
  Course course;
  /// One, or two: what the first has saved the second goes on from.
  std::vector<Strategy> parts;
  /// What it has of the features that it may have.
  Features has;

  int optimizer_steps() const;
};

struct Wishes {
  Features allowed;
  /// Drawn wherever it is possible.
  std::optional<Feature> always;
};

/// A pure function of its arguments. Each feature is drawn by itself, so that leaving others out
/// changes as little as possible of a case.
Case random_case(std::uint64_t seed, std::uint64_t number, int world, const Wishes& wishes);

/// All of it, for people.
std::string to_text(const Case& one);

} // namespace tessera::equivalence
