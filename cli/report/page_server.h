#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>

namespace tessera::cli {

/// Shows one page to browsers of this machine. It listens on 127.0.0.1 alone, and answers nobody
/// who names another host: a page of the web that has its own name lead here learns nothing.
///
/// It is no web server: GET and HEAD of "/", one thread, connections closed after their answer, few
/// at a time and for seconds each. Browsers ask for the page again by themselves.
/// Threads: one.
class PageServer {
 public:
  /// Listens on `port`; 0 takes a free one. Throws: Error naming the port when it cannot.
  explicit PageServer(std::uint16_t port);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// Returns "http://127.0.0.1:PORT/".
  std::string address() const;

  /// Answers until SIGINT, SIGTERM or SIGHUP comes. `page` makes the page anew for each request; an
  /// Error that it throws is shown to the browser in its place.
  void serve(const std::function<std::string()>& page);

 private:
  struct Connection;

  void take_connections();
  /// Reads or writes what is possible without waiting.
  void go_on(Connection& connection, const std::function<std::string()>& page);

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::list<Connection> connections_;
};

/// Returns the answer to a request, given as the bytes up to its empty line. Public for tests.
std::string
answer(const std::string& request, std::uint16_t port, const std::function<std::string()>& page);

} // namespace tessera::cli
