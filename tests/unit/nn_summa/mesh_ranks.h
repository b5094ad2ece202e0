#pragma once

#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Runs `run` on the ranks of a group of a whole world, one thread each. Returns the errors, one a
/// line.
inline std::string run_on_ranks(
    int size,
    const std::function<void(comm::World&, comm::ProcessGroup&)>& run) {
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(20);
  const auto worlds = comm::inproc_worlds(size, options);
  std::vector<std::string> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::vector<int> ranks(worlds.size());
        std::iota(ranks.begin(), ranks.end(), 0);
        const auto group = worlds[rank]->new_group("tp", ranks);
        run(*worlds[rank], *group);
      } catch (const std::exception& error) {
        errors[rank] = "rank " + std::to_string(rank) + ": " + error.what() + "\n";
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::string all;
  for (const std::string& error : errors) {
    all += error;
  }
  return all;
}

/// Runs `run` on the ranks of a mesh, likewise.
inline std::string run_on_mesh(
    int size,
    const MeshOptions& mesh_options,
    const std::function<void(const MeshPtr&)>& run) {
  return run_on_ranks(size, [&](comm::World& world, comm::ProcessGroup& group) {
    MeshOptions small = mesh_options;
    small.shared_bytes = std::size_t{64} << 20;
    run(Mesh::make(world, group, small));
  });
}

} // namespace tessera::nn::summa
