#include "lockstep/c10d/tcp_store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <type_traits>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::c10d {
namespace {

using std::chrono::milliseconds;

/// Where a client of this host reaches a listening socket.
struct Endpoint {
  std::string host;
  int port = 0;

  std::string to_string() const { return text(host, ":", port); }
};

/// A socket on a wildcard address is reached over loopback. Throws CommError when `fd` is no listening TCP socket.
Endpoint endpoint_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  int listening = 0;
  socklen_t listening_length = sizeof(listening);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &listening_length) != 0 || listening == 0 ||
      (storage.ss_family != AF_INET && storage.ss_family != AF_INET6)) {
    throw CommError(text("file descriptor ", fd, " is not a listening TCP socket"),
                    "the launcher hands the socket down by its number");
  }
  char host[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(storage);
    if (address.sin_addr.s_addr == htonl(INADDR_ANY)) return {"127.0.0.1", ntohs(address.sin_port)};
    ::inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host));
    return {host, ntohs(address.sin_port)};
  }
  const auto& address = reinterpret_cast<const sockaddr_in6&>(storage);
  if (IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr)) return {"::1", ntohs(address.sin6_port)};
  ::inet_ntop(AF_INET6, &address.sin6_addr, host, sizeof(host));
  return {host, ntohs(address.sin6_port)};
}

/// The first line of a LibTorch error, without its stack.
std::string reason(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string_view full = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return std::string(full.substr(0, full.find('\n')));
}

c10::intrusive_ptr<::c10d::TCPStore> open_store(const Endpoint& endpoint, bool serve, std::optional<int> listen_fd,
                                                milliseconds timeout) {
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(endpoint.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (listen_fd) options.masterListenFd = static_cast<std::size_t>(*listen_fd);
  try {
    return c10::make_intrusive<::c10d::TCPStore>(endpoint.host, options);
  } catch (const std::exception& error) {
    if (serve) throw CommError(text("cannot serve the store at ", endpoint.to_string(), ": ", reason(error)));
    throw CommError(text("cannot reach the store at ", endpoint.to_string(), " within ", format_duration(timeout), ": ",
                         reason(error)),
                    "is the launcher (or rank 0) running there? MASTER_ADDR and MASTER_PORT name this address");
  }
}

class TcpStore final : public comm::Store {
 public:
  TcpStore(c10::intrusive_ptr<::c10d::TCPStore> store, Endpoint endpoint)
      : store_(std::move(store)), endpoint_(std::move(endpoint)) {}

  void set(std::string_view key, std::string_view value) override {
    translate("set", key,
              [&] { store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    const std::string name(key);
    return translate("get", key, [&] {
      if (!store_->check({name})) wait_for(name, timeout);
      const std::vector<std::uint8_t> value = store_->get(name);
      return std::string(value.begin(), value.end());
    });
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return translate("add to", key, [&] { return store_->add(std::string(key), amount); });
  }

 private:
  /// On a connection of its own: a TCPStore holds its lock while it waits.
  void wait_for(const std::string& key, milliseconds timeout) {
    const std::lock_guard lock(waiting_mutex_);
    if (!waiting_store_) waiting_store_ = store_->clone();
    // TCPStore takes 0 for "no limit".
    try {
      waiting_store_->wait({key}, std::max(timeout, milliseconds(1)));
    } catch (const c10::DistStoreError&) {
      throw TimeoutError(text("nobody set the key \"", key, "\" in the store at ", endpoint_.to_string(), " within ",
                              format_duration(timeout)));
    }
  }

  template <typename Call>
  std::invoke_result_t<Call> translate(std::string_view verb, std::string_view key, Call call) {
    try {
      return call();
    } catch (const lockstep::Error&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError(
          text("cannot ", verb, " the key \"", key, "\" in the store at ", endpoint_.to_string(), ": ", reason(error)),
          "the process that serves the store has probably ended; look for an earlier error");
    }
  }

  c10::intrusive_ptr<::c10d::TCPStore> store_;
  Endpoint endpoint_;
  std::mutex waiting_mutex_;
  c10::intrusive_ptr<::c10d::Store> waiting_store_;
};

/// Keeps signals from being delivered, in this thread and in those it starts, for its life.
class BlockedSignals {
 public:
  explicit BlockedSignals(std::initializer_list<int> signals) {
    ::sigemptyset(&set_);
    for (const int signal : signals) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

  /// The next of them, or 0 after `timeout`.
  int next(milliseconds timeout) {
    timespec limit{};
    limit.tv_sec = timeout.count() / 1000;
    limit.tv_nsec = timeout.count() % 1000 * 1'000'000;
    return std::max(0, ::sigtimedwait(&set_, nullptr, &limit));
  }

 private:
  sigset_t set_{};
  sigset_t old_{};
};

}  // namespace

std::unique_ptr<comm::Store> connect_tcp_store(const TcpStoreOptions& options) {
  LOCKSTEP_CHECK(options.serve_here || !options.listen_fd);
  Endpoint endpoint{options.host, options.port};
  if (options.listen_fd) endpoint = endpoint_of(*options.listen_fd);
  return std::make_unique<TcpStore>(
      open_store(endpoint, options.serve_here, options.listen_fd, options.connect_timeout), endpoint);
}

void serve_store(int listen_fd) {
  const pid_t parent = ::getppid();
  BlockedSignals signals({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  const auto store = open_store(endpoint_of(listen_fd), true, listen_fd, std::chrono::seconds(30));
  // The launcher starts the ranks once it reads this line.
  std::puts("serving");
  std::fflush(stdout);
  while (signals.next(milliseconds(200)) != SIGTERM && ::getppid() == parent) {
  }
}

}  // namespace lockstep::c10d
