#pragma once

#include <cstddef>
#include <memory>

#include "tessera/comm/process_group.h"

namespace tessera::sharding {

/// Address space whose memory the system gives page by page as it is written, and takes back. It is
/// one process's, or the ranks of a node map it together; it reads as zeros at first.
/// Threads: any.
class Pages {
 public:
  /// Throws: CommError when there is no address space.
  static std::shared_ptr<Pages> of_process(std::size_t bytes);
  /// Collective over `node`, whose ranks are on one node. Throws: ConfigError when they share no
  /// memory.
  static std::shared_ptr<Pages> of_node(comm::ProcessGroup& node, std::size_t bytes);

  virtual ~Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  /// Begins on a page.
  std::byte* data() const {
    return data_;
  }
  /// Gives back the pages that lie in [begin, end) whole. What was there is lost, to all who map
  /// it. Not collective.
  void give_back(std::byte* begin, std::byte* end) const;

 protected:
  Pages(std::byte* data, int advice) : data_(data), advice_(advice) {}

 private:
  std::byte* data_;
  int advice_; // of madvise
};

} // namespace tessera::sharding
