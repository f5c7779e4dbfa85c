#include "lockstep/launch/store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/child.h"
#include "lockstep/launch/environment.h"

namespace lockstep::launch {

namespace {

constexpr auto kStoreStartLimit = std::chrono::milliseconds(2000);

sockaddr_in resolve(const std::string& address) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(address.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  if (status != 0 || found == nullptr) {
    throw ConfigError(text("--master-addr ", address, ": ", ::gai_strerror(status)),
                      "expected an IPv4 address or name of this machine, such as 127.0.0.1");
  }
  sockaddr_in result{};
  std::memcpy(&result, found->ai_addr, sizeof(result));
  return result;
}

[[noreturn]] void refuse(const std::string& address, std::optional<int> port, int error_number) {
  if (error_number == EADDRINUSE && port) {
    throw ConfigError(text("--master-port ", *port, " is in use by another program on ", address),
                      "leave the flag out: a free port is then held from the start");
  }
  if (error_number == EADDRNOTAVAIL)
    throw ConfigError(text("--master-addr ", address, " is no address of this machine"));
  if (error_number == EACCES && port) {
    throw ConfigError(text("--master-port ", *port, ": permission denied"), "ports below 1024 need privileges");
  }
  throw SystemError::from_errno(text("cannot listen on ", address), error_number);
}

std::string last_words(int fd) {
  char block[2000];
  const ssize_t got = ::read(fd, block, sizeof(block));
  const auto words = trim(std::string_view(block, got > 0 ? static_cast<std::size_t>(got) : 0));
  return std::string(words.substr(words.rfind('\n') + 1));  // npos + 1 is 0
}

std::string describe_exit(int status) {
  return WIFSIGNALED(status) ? text("killed by ", host::signal_name(WTERMSIG(status)))
                             : text("exited with ", WEXITSTATUS(status));
}

}  // namespace

ListeningSocket listen_on(const std::string& address, std::optional<int> port) {
  sockaddr_in name = resolve(address);
  name.sin_port = htons(static_cast<std::uint16_t>(port.value_or(0)));
  ListeningSocket socket;
  socket.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.fd) throw SystemError::from_errno("cannot make a socket", errno);
  const int on = 1;  // a port whose last connections are in TIME_WAIT is free
  ::setsockopt(socket.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  socklen_t size = sizeof(name);
  if (::bind(socket.fd.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) refuse(address, port, errno);
  if (::listen(socket.fd.get(), SOMAXCONN) != 0) refuse(address, port, errno);
  ::getsockname(socket.fd.get(), reinterpret_cast<sockaddr*>(&name), &size);
  socket.port = ntohs(name.sin_port);
  return socket;
}

std::optional<StoreProcess> start_store(const std::filesystem::path& program, const ListeningSocket& socket, int group,
                                        const StopSignals& signals, JobProcesses& processes, std::string& why_not) {
  Pipe ready = make_pipe();
  Pipe errors = make_pipe();
  ChildRequest request;
  request.command = {program.string(), "store", "--fd", text(socket.fd.get())};
  // The store computes nothing; a value that is no number would only make its OpenMP complain.
  request.environment = inherited_environment();
  std::erase_if(request.environment, [](const auto& entry) { return entry.starts_with("OMP_NUM_THREADS="); });
  request.group = group;
  request.stdout_fd = ready.write.get();
  request.stderr_fd = errors.write.get();
  request.inherited_fds = {socket.fd.get()};
  StoreProcess store;
  try {
    request.executable = find_program(program.string());
    store.pid = start_child(request, signals);
  } catch (const Error& error) {
    why_not = split(error.what(), '\n').front();
    return std::nullopt;
  }
  processes.add(store.pid);
  ready.write.reset();
  errors.write.reset();

  const auto deadline = std::chrono::steady_clock::now() + kStoreStartLimit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd fds[] = {{ready.read.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    if (left.count() <= 0) break;
    if (::poll(fds, 2, static_cast<int>(left.count())) < 0) continue;
    if (fds[1].revents != 0) break;
    if ((fds[0].revents & POLLIN) != 0) {
      last_words(ready.read.get());  // the word that it serves is for us, not for the console
      break;
    }
    if ((fds[0].revents & POLLHUP) == 0) continue;
    // It has closed its standard output, which a process does at its end.
    int status = 0;
    bool reaped = false;
    for (int i = 0; i < 20 && !(reaped = ::waitpid(store.pid, &status, WNOHANG) != 0); ++i) ::usleep(5000);
    if (!reaped) {
      ::kill(store.pid, SIGKILL);
      ::waitpid(store.pid, &status, 0);
    }
    processes.remove(store.pid);
    const auto words = last_words(errors.read.get());
    why_not = text(program.string(), " ", words.empty() ? describe_exit(status) : text("says: ", words));
    return std::nullopt;
  }
  store.output = std::move(ready.read);
  store.error_output = std::move(errors.read);
  return store;
}

}  // namespace lockstep::launch
