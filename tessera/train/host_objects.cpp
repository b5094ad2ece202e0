#include "tessera/train/host_objects.h"

#include <cstddef>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/comm/codec/object_codec.h"
#include "tessera/context/context.h"

namespace tessera {

namespace {

// A line of text, then the value in the form in which ranks send each other objects.
constexpr std::string_view kMagic = "tessera object 1 ";

std::string header_of(std::string_view content) {
  return str(kMagic, checkpoint::to_hex(checkpoint::checksum_of(content)), "\n");
}

constexpr int kObjectTag = 1;

} // namespace

std::string object_file_of_rank(const std::string& path) {
  const Config& config = config_in_force();
  const bool per_replica = config.shard_optimizer_state || config.sharded_data_parallel_degree > 1;
  if (tp_size() == 1 && !per_replica) {
    return str(path, "_", mp_rank());
  }
  const std::string file = str(path, "_", pp_rank(), "_", tp_rank());
  return per_replica ? str(file, "_", rdp_rank()) : file;
}

namespace detail {

void send_object(const c10::IValue& value, int rank, Group group) {
  context().world->send(global_rank(rank, group), value, kObjectTag);
}

c10::IValue receive_object(int rank, Group group) {
  return context().world->receive(global_rank(rank, group), kObjectTag);
}

c10::IValue broadcast_object(const c10::IValue& value, int root, Group group) {
  if (global_rank(root, group) != context().world->rank()) {
    return receive_object(root, group);
  }
  const int size = context().group(group).size();
  for (int rank = 0; rank < size; ++rank) {
    if (rank != root) {
      send_object(value, rank, group);
    }
  }
  return value;
}

std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group) {
  const Context& s = context();
  return comm::all_gather_object(*s.world, s.group(group), value, "allgather");
}

void write_object(const c10::IValue& value, const std::string& path) {
  const std::vector<std::byte> bytes = comm::encode_object(value);
  const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  checkpoint::AtomicFile file(checkpoint::real_file_system(), path);
  file.write(header_of(content));
  file.write(content);
  file.commit();
}

c10::IValue read_object(const std::string& path) {
  checkpoint::InputFile file(path);
  std::string text(file.size_bytes(), '\0');
  file.read(0, text.data(), text.size());
  const std::size_t end = text.find('\n');
  const std::string_view content =
      end == std::string::npos ? std::string_view() : std::string_view(text).substr(end + 1);
  if (!text.starts_with(kMagic)) {
    throw CheckpointError(
        str("'",
            path,
            "' is no file of tessera::save_object: it does not begin with \"",
            kMagic,
            "\""));
  }
  if (std::string_view(text).substr(0, end + 1) != header_of(content)) {
    throw CheckpointError(
        str("'", path, "' is damaged: its checksum is not that of its content; write it anew"));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
  return comm::decode_object(std::vector<std::byte>(bytes, bytes + content.size()));
}

void refuse_received(const std::string& call, const std::string& reason) {
  throw CommError(
      str(call,
          ": what came is of another type than was asked for, so the ranks' calls do not belong "
          "together: ",
          reason));
}

void refuse_type(const std::string& path, const std::string& reason) {
  throw CheckpointError(
      str("'", path, "' holds an object of another type than load_object was asked for: ", reason));
}

} // namespace detail

} // namespace tessera
