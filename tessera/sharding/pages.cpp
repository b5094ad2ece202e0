#include "tessera/sharding/pages.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/shared_memory/shared_memory.h"
#include "tessera/comm/shared_memory/window.h"

namespace tessera::sharding {

namespace {

class PrivatePages final : public Pages {
 public:
  PrivatePages(std::byte* data, std::size_t bytes) : Pages(data, MADV_DONTNEED), bytes_(bytes) {}
  ~PrivatePages() override {
    ::munmap(data(), bytes_);
  }

 private:
  std::size_t bytes_;
};

class SharedPages final : public Pages {
 public:
  explicit SharedPages(std::shared_ptr<comm::Window> window)
      : Pages(window->region(0), MADV_REMOVE), window_(std::move(window)) {}

 private:
  std::shared_ptr<comm::Window> window_;
};

} // namespace

std::shared_ptr<Pages> Pages::of_process(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  void* at = ::mmap(
      nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw CommError(
        str("there is no address space of ", bytes, " bytes for parameters: ", strerror(errno)));
  }
  return std::make_shared<PrivatePages>(static_cast<std::byte*>(at), size);
}

std::shared_ptr<Pages> Pages::of_node(comm::ProcessGroup& node, std::size_t bytes) {
  if (node.size() == 1) {
    return of_process(bytes);
  }
  comm::SharedMemory* memory = node.shared_memory();
  if (memory == nullptr) {
    throw ConfigError(
        str("sharded_data_parallel_degree is greater than 1, and the ranks of ",
            node.info().text(),
            " have one host name but share no memory, by which they read each other's parts; give "
            "their machines different host names, or write \"same_node_backend\": \"mpi\""));
  }
  // Regions of the ranks follow one another; what lies there goes across them.
  const auto ranks = static_cast<std::size_t>(node.size());
  return std::make_shared<SharedPages>(memory->make_window((bytes + ranks - 1) / ranks));
}

void Pages::give_back(std::byte* begin, std::byte* end) const {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
  const std::uintptr_t last = reinterpret_cast<std::uintptr_t>(end) / page * page;
  if (first >= last) {
    return;
  }
  if (::madvise(reinterpret_cast<void*>(first), last - first, advice_) != 0) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      log::warning(
          str("memory of gathered parameters is not given back to the system: ", strerror(errno)));
    }
  }
}

} // namespace tessera::sharding
