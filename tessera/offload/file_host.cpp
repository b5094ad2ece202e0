#include "tessera/offload/file_host.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include <sys/vfs.h>
#include <unistd.h>

#include <fcntl.h>
#include <linux/magic.h>

#include "tessera/base/error.h"

namespace tessera::offload {

namespace {

constexpr std::int64_t kBufferBytes = std::int64_t{1} << 20; // a multiple of Space::kAlignment
constexpr std::int64_t kGrowth = std::int64_t{1} << 20;

std::string text_of(int reason) {
  return std::system_category().message(reason);
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + Space::kAlignment - 1) / Space::kAlignment * Space::kAlignment;
}

/// A file that no name leads to; -1 with errno when none can be made.
int unnamed_file(const std::string& directory, int flags) {
  int file = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
    return file;
  }
  // A file system without O_TMPFILE.
  std::string path = directory + "/tessera-XXXXXX";
  file = ::mkostemp(path.data(), O_CLOEXEC | flags);
  if (file >= 0) {
    ::unlink(path.c_str());
  }
  return file;
}

} // namespace

class FileHost::FileCopy : public Copy {
 public:
  FileCopy(FileHost& host, std::byte* memory, std::int64_t bytes, std::int64_t offset, bool out)
      : memory(memory), bytes(bytes), offset(offset), out(out), host_(host) {}

  bool done() const override {
    const std::lock_guard lock(host_.mutex_);
    return ended;
  }
  void wait() override {
    std::unique_lock lock(host_.mutex_);
    host_.changed_.wait(lock, [this] { return ended; });
    if (error) {
      std::rethrow_exception(error);
    }
  }

  std::byte* const memory;
  const std::int64_t bytes;
  const std::int64_t offset; // in the file
  const bool out;
  bool ended = false;
  std::exception_ptr error;

 private:
  FileHost& host_; // an Entry holds it longer than its copies
};

FileHost::FileHost(std::string directory, std::string who)
    : directory_(std::move(directory)), who_(std::move(who)) {
  open_file();
  buffer_ = static_cast<std::byte*>(std::aligned_alloc(Space::kAlignment, kBufferBytes));
  TESSERA_CHECK(buffer_ != nullptr, "no memory for a buffer of ", kBufferBytes, " bytes");
  thread_ = std::thread([this] { loop(); });
}

FileHost::~FileHost() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::free(buffer_);
  ::close(file_);
}

void FileHost::open_file() {
  file_ = unnamed_file(directory_, O_DIRECT);
  if (file_ < 0 && errno == EINVAL) { // a file system whose files are all cached
    direct_ = false;
    file_ = unnamed_file(directory_, 0);
  }
  if (file_ < 0) {
    const int reason = errno;
    throw ConfigError(
        str("offload_directory: ",
            who_,
            " cannot make a file in '",
            directory_,
            "': ",
            text_of(reason),
            "; name a folder on a local disk to which this process may write"));
  }
  struct statfs system {};
  in_memory_ = ::fstatfs(file_, &system) == 0 &&
               (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

std::string FileHost::failure(const std::string& what, int reason) const {
  return str(
      "offload_directory '",
      directory_,
      "': the file of offloaded activations of ",
      who_,
      " ",
      what,
      ": ",
      text_of(reason),
      "; name a folder with more room, recompute larger parts of the model (strategy \"group_x\"), "
      "or write fewer active_microbatches");
}

void FileHost::make_room(std::int64_t bytes) {
  if (bytes <= file_bytes_) {
    return;
  }
  const std::int64_t wanted = (bytes + kGrowth - 1) / kGrowth * kGrowth;
  // Blocks are asked for now, so that a full disk is found here, where somebody can be told.
  int result = ::fallocate(file_, 0, file_bytes_, wanted - file_bytes_);
  if (result != 0 && errno == EOPNOTSUPP) {
    result = ::ftruncate(file_, wanted);
  }
  if (result != 0) {
    const int reason = errno;
    throw ConfigError(
        failure(str("cannot grow from ", file_bytes_, " to ", wanted, " bytes"), reason));
  }
  file_bytes_ = wanted;
}

Place FileHost::reserve(std::int64_t bytes) {
  const Place place = space_.take(bytes);
  try {
    make_room(place.offset + place.bytes);
  } catch (const ConfigError&) {
    space_.give_back(place);
    throw;
  }
  return place;
}

void FileHost::give_back(Place place) noexcept {
  space_.give_back(place);
}

std::shared_ptr<Copy> FileHost::copy_out(const at::Tensor& memory, Place to) {
  return begin(
      std::make_shared<FileCopy>(
          *this, static_cast<std::byte*>(memory.data_ptr()), memory.numel(), to.offset, true),
      out_);
}

std::shared_ptr<Copy> FileHost::copy_in(Place from, const at::Tensor& memory) {
  return begin(
      std::make_shared<FileCopy>(
          *this, static_cast<std::byte*>(memory.data_ptr()), memory.numel(), from.offset, false),
      in_);
}

std::shared_ptr<Copy> FileHost::begin(
    std::shared_ptr<FileCopy> copy,
    std::deque<std::shared_ptr<FileCopy>>& queue) {
  {
    const std::lock_guard lock(mutex_);
    queue.push_back(copy);
  }
  changed_.notify_all();
  return copy;
}

void FileHost::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !in_.empty() || !out_.empty(); });
    if (in_.empty() && out_.empty()) {
      return; // whoever waits for a copy has it
    }
    auto& queue = in_.empty() ? out_ : in_;
    const std::shared_ptr<FileCopy> copy = queue.front();
    queue.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      run(*copy);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    copy->ended = true;
    copy->error = error;
    changed_.notify_all();
  }
}

void FileHost::run(const FileCopy& copy) {
  for (std::int64_t at = 0; at < copy.bytes; at += kBufferBytes) {
    const std::int64_t bytes = std::min(kBufferBytes, copy.bytes - at);
    const std::int64_t whole = aligned(bytes); // inside of the piece, which is aligned as well
    if (copy.out) {
      std::memcpy(buffer_, copy.memory + at, static_cast<std::size_t>(bytes));
      std::memset(buffer_ + bytes, 0, static_cast<std::size_t>(whole - bytes));
    }
    for (std::int64_t done = 0; done < whole;) {
      std::byte* const part = buffer_ + done;
      const auto rest = static_cast<std::size_t>(whole - done);
      const off_t place = copy.offset + at + done;
      const ssize_t moved =
          copy.out ? ::pwrite(file_, part, rest, place) : ::pread(file_, part, rest, place);
      if (moved < 0 && errno == EINTR) {
        continue;
      }
      if (moved <= 0) { // a file that ends too early says EIO
        const int reason = moved < 0 ? errno : EIO;
        throw ConfigError(failure(copy.out ? "cannot be written" : "cannot be read", reason));
      }
      done += moved;
    }
    if (!copy.out) {
      std::memcpy(copy.memory + at, buffer_, static_cast<std::size_t>(bytes));
    }
  }
}

} // namespace tessera::offload
