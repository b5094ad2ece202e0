// Host-object collectives and the groups of a mesh, over World's own calls.
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/world.h"
#include "tessera/diagnostics/activity.h"

namespace tessera::comm {

namespace {

void check_root(const ProcessGroup& group, int root) {
  if (root < 0 || root >= group.size()) {
    throw CommError(
        str("root ",
            root,
            " is not a rank of group '",
            group.name(),
            "'; expected 0 to ",
            group.size() - 1));
  }
}

int global(const ProcessGroup& group, int rank) {
  return group.ranks().at(static_cast<std::size_t>(rank));
}

// What a rank calls, as it travels with the value: ranks that call different things are not paired.
std::string text_of(const char* caller, const char* part, const ProcessGroup& group, int root) {
  return str(caller, " (", part, " rank ", root, " of group '", group.name(), "')");
}

void send_to(
    World& world,
    const ProcessGroup& group,
    int peer,
    const std::string& call,
    const c10::IValue& value) {
  world.send(global(group, peer), c10::ivalue::Tuple::create(call, value), kObjectCollectiveTag);
}

c10::IValue
receive_from(World& world, const ProcessGroup& group, int peer, const std::string& call) {
  const c10::IValue received = world.receive(global(group, peer), kObjectCollectiveTag);
  const auto& elements = received.toTupleRef().elements();
  const std::string& theirs = elements.at(0).toStringRef();
  if (theirs != call) {
    throw CommError(
        str("rank ",
            world.rank(),
            " is in ",
            call,
            " and rank ",
            global(group, peer),
            " called ",
            theirs,
            "; all ranks of a group make the same calls in the same order"));
  }
  return elements.at(1);
}

constexpr const char* kFrom = "values from";
constexpr const char* kTo = "values to";

} // namespace

c10::IValue broadcast_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    int root,
    const char* caller) {
  check_root(group, root);
  const diagnostics::activity::Operation shown(caller, group.name());
  const std::string call = text_of(caller, kFrom, group, root);
  if (group.rank() != root) {
    return receive_from(world, group, root, call);
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != root) {
      send_to(world, group, peer, call, value);
    }
  }
  return value;
}

std::vector<c10::IValue> gather_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    int root,
    const char* caller) {
  check_root(group, root);
  const diagnostics::activity::Operation shown(caller, group.name());
  const std::string call = text_of(caller, kTo, group, root);
  if (group.rank() != root) {
    send_to(world, group, root, call, value);
    return {};
  }
  std::vector<c10::IValue> values;
  for (int peer = 0; peer < group.size(); ++peer) {
    values.push_back(peer == root ? value : receive_from(world, group, peer, call));
  }
  return values;
}

std::vector<c10::IValue> all_gather_object(
    World& world,
    const ProcessGroup& group,
    const c10::IValue& value,
    const char* caller) {
  std::vector<c10::IValue> values = gather_object(world, group, value, 0, caller);
  const c10::IValue all =
      broadcast_object(world, group, c10::ivalue::Tuple::create(std::move(values)), 0, caller);
  const auto& elements = all.toTupleRef().elements();
  return std::vector<c10::IValue>(elements.begin(), elements.end());
}

MeshGroups::MeshGroups(World& world, const topology::RankLayout& layout) {
  if (layout.world_size() != world.size()) {
    throw ConfigError(
        str("the degrees ask for ",
            layout.world_size(),
            " ranks (pipeline ",
            layout.degrees().pipeline,
            " x tensor ",
            layout.degrees().tensor,
            " x reduced data ",
            layout.degrees().reduced_data,
            "), but the world has ",
            world.size()));
  }
  for (const topology::Group kind : topology::kAllGroups) {
    groups_.push_back(
        world.new_group(std::string(topology::name_of(kind)), layout.members(kind, world.rank())));
  }
}

ProcessGroup& MeshGroups::at(topology::Group group) const {
  return *groups_.at(static_cast<std::size_t>(group));
}

} // namespace tessera::comm
