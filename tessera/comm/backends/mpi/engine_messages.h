#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <mpi.h>

#include "tessera/comm/backends/mpi/mpi_engine.h"

// What MpiEngine's sources share: messages of a step, and of failures.
namespace tessera::comm::mpi {

/// The messages of one step, to and from the other ranks.
struct MpiEngine::Exchange {
  struct Message {
    int peer;
    bool receiving;
    int bytes;
    bool done = false;
  };
  std::vector<MPI_Request> requests;
  std::vector<Message> messages;

  std::string missing(const GroupInfo& info) const {
    std::string text;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].done) {
        text +=
            str(text.empty() ? "" : ", ",
                messages[i].receiving ? "nothing came from rank " : "nothing was taken by rank ",
                info.ranks[static_cast<std::size_t>(messages[i].peer)]);
      }
    }
    return text;
  }
};

/// A rank's own code has failed once more, after it had started so many
/// operations.
struct MpiEngine::Notice {
  std::uint32_t started = 0;
  std::array<char, 512> why{};
};

struct MpiEngine::SentNotice {
  Notice notice;
  std::vector<MPI_Request> requests;
};

/// No operation has this tag.
inline constexpr int kNoticeTag = 32767;

} // namespace tessera::comm::mpi
