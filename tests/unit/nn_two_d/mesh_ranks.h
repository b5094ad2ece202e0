#pragma once

#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// Runs `run` on the ranks of a mesh, one thread each. The errors, one a line.
inline std::string run_on_mesh(
    int size,
    const MeshOptions& mesh_options,
    const std::function<void(const MeshPtr&)>& run) {
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
        MeshOptions small = mesh_options;
        small.shared_bytes = std::size_t{64} << 20;
        const MeshPtr mesh = Mesh::make(*worlds[rank], *group, small);
        run(mesh);
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

} // namespace tessera::nn::two_d
