#pragma once

#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tessera/checkpoint/file_system.h"

namespace tessera::checkpoint {

/// The writer is dead: thrown where a real process would have stopped.
struct InjectedCrash {};

/// Fails or dies at the k-th call, counted from 0. After a death every call
/// does nothing, and files that were not synced lose half of their data, as
/// after a power cut. Syncing is recorded, not done: nobody cuts the power of
/// the machine that runs the test, and thousands of saves stay quick.
class FaultFileSystem : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kCrash, // before the call takes effect
    kNoSpace, // ENOSPC, once
    kFullDisk, // ENOSPC from then on for everything that needs space
    kInputOutput, // EIO, once
    kShortWrite // half of a write is done; other calls are not touched
  };

  FaultFileSystem() = default;
  FaultFileSystem(Fault fault, int at) : fault_(fault), at_(at) {}

  int calls() const {
    return calls_;
  }
  bool happened() const {
    return happened_;
  }

  int create(const std::string& path) override {
    if (fails(true)) {
      return -1;
    }
    const int fd = FileSystem::create(path);
    if (fd >= 0) {
      open_[fd] = path;
      unsynced_.insert(path);
    }
    return fd;
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (fault_ == Fault::kShortWrite && calls_ == at_ && bytes > 1) {
      ++calls_;
      happened_ = true;
      return FileSystem::write(fd, data, bytes / 2);
    }
    return fails(true) ? -1 : FileSystem::write(fd, data, bytes);
  }
  int sync(int fd) override {
    if (fails(true)) {
      return -1;
    }
    unsynced_.erase(open_.at(fd));
    return 0;
  }
  int close(int fd) override {
    open_.erase(fd);
    if (dead_) {
      return FileSystem::close(fd);
    }
    const bool failed = fails(false);
    const int error = errno;
    const int result = FileSystem::close(fd);
    errno = failed ? error : errno;
    return failed ? -1 : result;
  }
  int rename(const std::string& from, const std::string& to) override {
    if (fails(true)) {
      return -1;
    }
    if (unsynced_.erase(from) > 0) {
      unsynced_.insert(to);
    }
    return FileSystem::rename(from, to);
  }
  int make_directory(const std::string& path) override {
    return fails(true) ? -1 : FileSystem::make_directory(path);
  }
  int remove_file(const std::string& path) override {
    return fails(false) ? -1 : FileSystem::remove_file(path);
  }
  int remove_directory(const std::string& path) override {
    return fails(false) ? -1 : FileSystem::remove_directory(path);
  }
  int sync_directory(const std::string& path) override {
    return fails(true) || !std::filesystem::is_directory(path) ? -1 : 0;
  }
  std::optional<std::vector<std::string>> list(const std::string& path) override {
    if (fails(false)) {
      return std::nullopt;
    }
    return FileSystem::list(path);
  }

 private:
  // Counts a call; true (with errno) when it must fail.
  bool fails(bool needs_space) {
    if (dead_) {
      errno = EIO;
      return true;
    }
    const int call = calls_++;
    if (fault_ == Fault::kFullDisk && call >= at_ && needs_space) {
      happened_ = true;
      errno = ENOSPC;
      return true;
    }
    if (call != at_ || fault_ == Fault::kNone || fault_ == Fault::kShortWrite ||
        fault_ == Fault::kFullDisk) {
      return false;
    }
    happened_ = true;
    if (fault_ == Fault::kCrash) {
      dead_ = true;
      for (const auto& path : unsynced_) {
        std::error_code ignored;
        const auto size = std::filesystem::file_size(path, ignored);
        if (!ignored) {
          std::filesystem::resize_file(path, size / 2, ignored);
        }
      }
      throw InjectedCrash();
    }
    errno = fault_ == Fault::kNoSpace ? ENOSPC : EIO;
    return true;
  }

  Fault fault_ = Fault::kNone;
  int at_ = -1;
  int calls_ = 0;
  bool dead_ = false;
  bool happened_ = false;
  std::map<int, std::string> open_;
  std::set<std::string> unsynced_;
};

} // namespace tessera::checkpoint
