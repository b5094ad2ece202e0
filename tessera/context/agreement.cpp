#include "tessera/context/agreement.h"

#include <vector>

#include "tessera/tensor/value.h"

namespace tessera {

std::optional<std::string> first_problem(
    comm::World& world,
    const comm::ProcessGroup& group,
    const std::optional<std::string>& mine) {
  const c10::IValue text = mine ? c10::IValue(*mine) : c10::IValue();
  for (const c10::IValue& theirs : comm::all_gather_object(world, group, text)) {
    if (!theirs.isNone()) {
      return theirs.toStringRef();
    }
  }
  return std::nullopt;
}

std::set<std::string>
all_problems(comm::World& world, const comm::ProcessGroup& group, std::set<std::string> mine) {
  const auto all = comm::all_gather_object(
      world, group, pack(std::vector<std::string>(mine.begin(), mine.end())));
  for (const c10::IValue& theirs : all) {
    for (std::string& problem : unpack<std::vector<std::string>>(theirs)) {
      mine.insert(std::move(problem));
    }
  }
  return mine;
}

std::string listed(const std::string& title, const std::set<std::string>& problems) {
  std::string text = title;
  for (const std::string& problem : problems) {
    text += "\n  " + problem;
  }
  return text;
}

} // namespace tessera
