#include "tessera/train/host_objects.h"

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/comm/codec/object_codec.h"
#include "tessera/context/context.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/train/engine.h"

namespace tessera {

namespace {

// A line of text, then the value in the form in which ranks send each other objects.
constexpr std::string_view kMagic = "tessera object 1 ";

std::string header_of(std::string_view content) {
  return str(kMagic, checkpoint::to_hex(checkpoint::checksum_of(content)), "\n");
}

constexpr int kObjectTag = 1;

// Values travel with the name of the call that sent them.
constexpr const char* kSend = "send";
constexpr const char* kBroadcast = "broadcast";

std::pair<std::string, c10::IValue> receive_call(int rank, Group group) {
  const c10::IValue received = context().world->receive(global_rank(rank, group), kObjectTag);
  const auto& elements = received.toTupleRef().elements();
  return {elements.at(0).toStringRef(), elements.at(1)};
}

void check_may_wait(const char* call, const std::vector<int>& ranks) {
  train::engine().model_set()->check_may_wait(call, ranks);
}

void send_call(const char* call, const c10::IValue& value, int rank, Group group) {
  context().world->send(
      global_rank(rank, group), c10::ivalue::Tuple::create(std::string(call), value), kObjectTag);
}

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
  send_call(kSend, value, rank, group);
}

// The documentation's scripts receive with recv_from what a root broadcasts.
c10::IValue receive_object(int rank, Group group) {
  check_may_wait("recv_from", {global_rank(rank, group)});
  const diagnostics::activity::Operation shown("recv_from", context().group(group).name());
  return receive_call(rank, group).second;
}

c10::IValue broadcast_object(const c10::IValue& value, int root, Group group) {
  const std::string& name = context().group(group).name();
  const diagnostics::activity::Operation shown(kBroadcast, name);
  if (global_rank(root, group) != context().world->rank()) {
    check_may_wait(kBroadcast, {global_rank(root, group)});
    const auto [call, received] = receive_call(root, group);
    if (call != kBroadcast) {
      throw CommError(
          str("broadcast from rank ",
              root,
              " of group '",
              name,
              "': what came from there was sent with ",
              call,
              "; receive it with recv_from, in the order in which that rank calls"));
    }
    return received;
  }
  const int size = context().group(group).size();
  for (int rank = 0; rank < size; ++rank) {
    if (rank != root) {
      send_call(kBroadcast, value, rank, group);
    }
  }
  return value;
}

std::vector<c10::IValue> all_gather_object(const c10::IValue& value, Group group) {
  const Context& s = context();
  check_may_wait("allgather", s.group(group).ranks());
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
