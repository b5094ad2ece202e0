// Host-object collectives and the groups of a mesh, over World's own calls.
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/world.h"

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

} // namespace

c10::IValue
broadcast_object(World& world, const ProcessGroup& group, const c10::IValue& value, int root) {
  check_root(group, root);
  if (group.rank() != root) {
    return world.receive(global(group, root), kObjectCollectiveTag);
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != root) {
      world.send(global(group, peer), value, kObjectCollectiveTag);
    }
  }
  return value;
}

std::vector<c10::IValue>
gather_object(World& world, const ProcessGroup& group, const c10::IValue& value, int root) {
  check_root(group, root);
  if (group.rank() != root) {
    world.send(global(group, root), value, kObjectCollectiveTag);
    return {};
  }
  std::vector<c10::IValue> values;
  for (int peer = 0; peer < group.size(); ++peer) {
    values.push_back(
        peer == root ? value : world.receive(global(group, peer), kObjectCollectiveTag));
  }
  return values;
}

std::vector<c10::IValue>
all_gather_object(World& world, const ProcessGroup& group, const c10::IValue& value) {
  std::vector<c10::IValue> values = gather_object(world, group, value, 0);
  const c10::IValue all =
      broadcast_object(world, group, c10::ivalue::Tuple::create(std::move(values)), 0);
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
