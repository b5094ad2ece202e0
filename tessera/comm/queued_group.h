#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/engine.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/shared_memory/shared_memory.h"

namespace tessera::comm {

/// A process group over an engine: runs asynchronous operations in order on one
/// thread, made at the first of them. A blocking call with nothing before it
/// runs on its caller.
///
/// After an error the group stays failed: everything queued and everything later throws, naming the
/// first error; a PeerFailed does not count and is cleared by `recover`. Destruction finishes what
/// is queued, or drops it when an exception is on its way.
/// Collective, as its base. Threads: any thread.
class QueuedGroup final : public ProcessGroup, private SharedMemory {
 public:
  /// `engine` may be null for a group of one.
  QueuedGroup(const GroupInfo& info, std::unique_ptr<Engine> engine);
  ~QueuedGroup() override;

  void abandon(const std::string& why) override;
  void recover() override;
  SharedMemory* shared_memory() override;

 protected:
  WorkPtr start(Call call) override;
  void run(Call call) override;

 private:
  class Task;

  std::shared_ptr<Window> make_window(std::size_t bytes_of_rank) override;
  void execute(const Call& call);
  std::exception_ptr try_to_execute(const Call& call);
  void work();
  void throw_if_failed() const;

  std::unique_ptr<Engine> engine_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> queue_; // guarded by mutex_
  bool executing_ = false; // guarded by mutex_
  bool stopping_ = false; // guarded by mutex_
  std::uint32_t started_ = 0; // operations; guarded by mutex_
  std::string error_; // used by whoever executes
  std::vector<Call> abandoned_; // whose memory the engine may still use; as error_
  std::thread thread_; // guarded by mutex_
};

} // namespace tessera::comm
