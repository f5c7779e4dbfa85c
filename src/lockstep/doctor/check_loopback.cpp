#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/doctor/checks.h"

namespace lockstep::doctor {
namespace {

/// Connects a socket to a listening one on 127.0.0.1; "" or the call that failed.
std::string try_loopback() {
  const auto failed = [](const char* call) { return text(call, ": ", std::strerror(errno)); };
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) return failed("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (bind(listener.get(), name, length) != 0) return failed("bind");
  if (listen(listener.get(), 1) != 0) return failed("listen");
  if (getsockname(listener.get(), name, &length) != 0) return failed("getsockname");
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client) return failed("socket");
  return connect(client.get(), name, length) == 0 ? std::string() : failed("connect");
}

}  // namespace

Result check_loopback(const Machine&) {
  const std::string problem = try_loopback();
  if (problem.empty()) return {"", Status::kOk, "processes reach each other through 127.0.0.1", "", ""};
  return {"", Status::kFail, text("127.0.0.1 does not work: ", problem), "ranks meet at a store that listens there",
          "ip link set lo up; look at the firewall and the sandbox"};
}

}  // namespace lockstep::doctor
