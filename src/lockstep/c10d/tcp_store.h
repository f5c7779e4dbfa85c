#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/store.h"

namespace lockstep::c10d {

/// The store that torchrun uses: LibTorch's TCPStore, as a client, or as the server and a client of itself.
struct TcpStoreOptions {
  std::string host;  ///< of the server, as MASTER_ADDR
  int port = 0;      ///< as MASTER_PORT
  bool serve_here = false;
  /// Server only: a listening TCP socket that is taken over, so that no port is raced for; its port replaces `port`.
  std::optional<int> listen_fd;
  /// Longest wait for the server to answer at all.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
};

/// Connects, and serves first when asked to; the server lives as long as the returned store. Waiting in get() does not
/// keep other threads from set() and add(). Throws CommError that names host:port when the server cannot be reached or
/// the socket cannot be served; the store throws CommError when the server is gone, TimeoutError when a key is not set.
std::unique_ptr<comm::Store> connect_tcp_store(const TcpStoreOptions& options);

/// Serves a store on the listening TCP socket `listen_fd`, which it takes over, until SIGTERM comes or the process's
/// parent is gone. SIGINT, SIGHUP and SIGQUIT are left to the others of the job: the store outlives them.
/// Call it before the process has other threads. Throws CommError when the socket cannot be served.
void serve_store(int listen_fd);

}  // namespace lockstep::c10d
