#include "cli/report/page_server.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <system_error>
#include <vector>

#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestConnection(20);
constexpr std::size_t kMostConnections = 32;
constexpr std::size_t kMostRequestBytes = 16384;
constexpr int kRefreshSeconds = 5;

[[noreturn]] void throw_errno(const std::string& what) {
  throw Error(str(what, ": ", std::system_category().message(errno)));
}

/// Blocks the signals that end the server and makes a descriptor from which they are read, so that
/// one poll waits for signals and connections.
class EndSignals {
 public:
  EndSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      sigaddset(&signals, signal);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    descriptor_ = signalfd(-1, &signals, SFD_CLOEXEC);
    if (descriptor_ < 0) {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw_errno("cannot wait for signals");
    }
  }
  ~EndSignals() {
    signalfd_siginfo taken{};
    // One that came must not end the process when it is let through again.
    [[maybe_unused]] const auto ignored = taken_ ? read(descriptor_, &taken, sizeof(taken)) : 0;
    close(descriptor_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  int descriptor() const {
    return descriptor_;
  }
  void take() {
    taken_ = true;
  }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
  bool taken_ = false;
};

std::string response(const char* status, const char* type, const std::string& body, bool head) {
  return str(
      "HTTP/1.1 ",
      status,
      "\r\nContent-Type: ",
      type,
      "; charset=utf-8\r\nContent-Length: ",
      body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\nRefresh: ",
      kRefreshSeconds,
      "\r\nConnection: close\r\n\r\n",
      head ? "" : body);
}

/// Returns the value of a header of a request, "" when it has none.
std::string header(const std::string& request, const std::string& name) {
  std::istringstream lines(request);
  std::string line;
  std::getline(lines, line); // the request line
  while (std::getline(lines, line)) {
    const std::size_t colon = line.find(':');
    const bool same = colon == name.size() &&
                      std::equal(name.begin(), name.end(), line.begin(), [](char a, char b) {
                        return std::tolower(static_cast<unsigned char>(b)) == a;
                      });
    if (same) {
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      const std::size_t end = line.find_last_not_of(" \t\r");
      return begin == std::string::npos ? "" : line.substr(begin, end + 1 - begin);
    }
  }
  return "";
}

} // namespace

struct PageServer::Connection {
  int socket;
  Clock::time_point until;
  std::string in = {};
  std::string out = {}; // what has not been sent; the answer is made when the request is whole
  bool done = false;
};

std::string
answer(const std::string& request, std::uint16_t port, const std::function<std::string()>& page) {
  constexpr const char* kText = "text/plain";
  std::istringstream first(request.substr(0, request.find("\r\n")));
  std::string method;
  std::string target;
  std::string version;
  first >> method >> target >> version;
  if (version.rfind("HTTP/1.", 0) != 0) {
    return response("400 Bad Request", kText, "this is no HTTP request\n", false);
  }
  const std::string host = header(request, "host");
  if (host != str("127.0.0.1:", port) && host != str("localhost:", port)) {
    return response("403 Forbidden", kText, "only for browsers of this machine\n", false);
  }
  if (method != "GET" && method != "HEAD") {
    return response("405 Method Not Allowed", kText, "the page can be read only\n", false);
  }
  if (target != "/") {
    return response("404 Not Found", kText, "there is one page, /\n", method == "HEAD");
  }
  try {
    return response("200 OK", "text/html", page(), method == "HEAD");
  } catch (const std::exception& error) {
    return response("500 Internal Server Error", kText, str(error.what(), "\n"), method == "HEAD");
  }
}

PageServer::PageServer(std::uint16_t port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) {
    throw_errno("cannot make a socket");
  }
  const int yes = 1; // a port of an earlier call can be used again at once
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_port = htons(port);
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(here);
  auto* address = reinterpret_cast<sockaddr*>(&here);
  if (bind(listener_, address, size) != 0 || listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, address, &size) != 0) {
    const int failure = errno;
    close(listener_);
    errno = failure;
    throw_errno(str("cannot listen on port ", port, " of 127.0.0.1"));
  }
  port_ = ntohs(here.sin_port);
}

PageServer::~PageServer() {
  for (const Connection& connection : connections_) {
    close(connection.socket);
  }
  close(listener_);
}

std::string PageServer::address() const {
  return str("http://127.0.0.1:", port_, "/");
}

void PageServer::take_connections() {
  while (connections_.size() < kMostConnections) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      return; // no more, or one that was given up meanwhile
    }
    connections_.push_back({socket, Clock::now() + kLongestConnection});
  }
}

void PageServer::go_on(Connection& connection, const std::function<std::string()>& page) {
  if (connection.out.empty()) {
    char bytes[4096];
    const ssize_t count = recv(connection.socket, bytes, sizeof(bytes), 0);
    if (count <= 0) {
      connection.done = count == 0 || (errno != EAGAIN && errno != EINTR);
      return;
    }
    connection.in.append(bytes, static_cast<std::size_t>(count));
    const std::size_t end = connection.in.find("\r\n\r\n");
    if (end == std::string::npos) {
      connection.done = connection.in.size() > kMostRequestBytes;
      return;
    }
    connection.out = answer(connection.in.substr(0, end + 2), port_, page);
  }
  // Without MSG_NOSIGNAL a browser that has gone would end the process.
  const ssize_t count =
      send(connection.socket, connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
  if (count < 0) {
    connection.done = errno != EAGAIN && errno != EINTR;
    return;
  }
  connection.out.erase(0, static_cast<std::size_t>(count));
  connection.done = connection.out.empty();
}

void PageServer::serve(const std::function<std::string()>& page) {
  EndSignals signals;
  for (;;) {
    std::vector<pollfd> waiting = {
        {signals.descriptor(), POLLIN, 0},
        // One connection more than are served waits in the kernel.
        {connections_.size() < kMostConnections ? listener_ : -1, POLLIN, 0}};
    int longest = -1; // without connections nothing but an event wakes this thread
    for (const Connection& connection : connections_) {
      waiting.push_back(
          {connection.socket, static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT), 0});
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(connection.until - Clock::now());
      const int wait = std::max(0, static_cast<int>(left.count()));
      longest = longest < 0 ? wait : std::min(longest, wait);
    }
    if (poll(waiting.data(), waiting.size(), longest) < 0 && errno != EINTR) {
      throw_errno("cannot wait for connections");
    }
    if (waiting[0].revents != 0) {
      signals.take();
      return;
    }
    std::size_t at = 2;
    for (Connection& connection : connections_) {
      if (waiting[at++].revents != 0) {
        go_on(connection, page);
      }
      connection.done = connection.done || Clock::now() >= connection.until;
    }
    connections_.remove_if([](const Connection& connection) {
      if (connection.done) {
        close(connection.socket);
      }
      return connection.done;
    });
    if (waiting[1].revents != 0) {
      take_connections();
    }
  }
}

} // namespace tessera::cli
