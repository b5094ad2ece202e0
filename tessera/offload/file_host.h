#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tessera/offload/host.h"
#include "tessera/offload/space.h"

namespace tessera::offload {

/// A file without a name in a folder: it is unlinked as soon as it is made, so nothing is left of
/// it, whichever way the process ends. Its space is used again from step to step and never shrinks.
///
/// One thread copies; it sleeps when there is nothing to copy. Copies in go before copies out,
/// since a backward waits for them. Where the file system allows it (O_DIRECT) the copies pass the
/// system's cache of files by, which would else hold them in the memory that is to be saved.
class FileHost : public Host {
 public:
  /// `who` names the rank, for messages. Throws: ConfigError naming offload_directory and the
  /// system's reason when no file can be made in `directory`.
  FileHost(std::string directory, std::string who);
  ~FileHost() override;
  FileHost(const FileHost&) = delete;
  FileHost& operator=(const FileHost&) = delete;

  /// Throws: ConfigError when the disk is full.
  Place reserve(std::int64_t bytes) override;
  void give_back(Place place) noexcept override;
  std::shared_ptr<Copy> copy_out(const at::Tensor& memory, Place to) override;
  std::shared_ptr<Copy> copy_in(Place from, const at::Tensor& memory) override;
  std::int64_t bytes() const override {
    return space_.size();
  }

  /// Returns whether copies pass the system's cache by.
  bool direct() const {
    return direct_;
  }
  /// Returns whether the folder itself is in memory, so that nothing is saved.
  bool in_memory() const {
    return in_memory_;
  }

 private:
  class FileCopy;

  void open_file();
  void make_room(std::int64_t bytes);
  std::shared_ptr<Copy> begin(
      std::shared_ptr<FileCopy> copy,
      std::deque<std::shared_ptr<FileCopy>>& queue);
  void loop();
  void run(const FileCopy& copy);
  std::string failure(const std::string& what, int reason) const;

  std::string directory_;
  std::string who_;
  int file_ = -1;
  bool direct_ = true;
  bool in_memory_ = false;
  Space space_;
  std::int64_t file_bytes_ = 0;
  std::byte* buffer_ = nullptr; // of the thread: direct copies need aligned memory

  std::mutex mutex_; // of what is below, and of the copies
  std::condition_variable changed_;
  std::deque<std::shared_ptr<FileCopy>> in_;
  std::deque<std::shared_ptr<FileCopy>> out_;
  bool stop_ = false;
  std::thread thread_; // last: it uses all of the above
};

} // namespace tessera::offload
