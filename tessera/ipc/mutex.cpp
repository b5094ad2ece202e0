#include "tessera/ipc/mutex.h"

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::ipc {

void Mutex::make() {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = ::pthread_mutex_init(&mutex_, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (error != 0) {
    throw CommError(str("a lock between processes could not be made: ", std::strerror(error)));
  }
}

void Mutex::lock() {
  const int error = ::pthread_mutex_lock(&mutex_);
  if (error == EOWNERDEAD) {
    ::pthread_mutex_unlock(&mutex_); // not made consistent: nobody gets it any more
  }
  if (error != 0) {
    throw CommError(
        str("a lock between processes of this node could not be taken: ",
            error == EOWNERDEAD || error == ENOTRECOVERABLE ? "a process that held it has ended"
                                                            : std::strerror(error)));
  }
}

void Mutex::unlock() {
  ::pthread_mutex_unlock(&mutex_);
}

} // namespace tessera::ipc
