#include "lockstep/comm/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Hello {
  Nonce nonce{};
  std::int32_t rank = -1;
  std::int32_t pid = 0;
};

std::string host_name() {
  char buffer[256] = {};
  return ::gethostname(buffer, sizeof(buffer) - 1) == 0 ? buffer : "unknown";
}

std::string to_hex(const Nonce& nonce) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : nonce) out += {kDigits[byte >> 4], kDigits[byte & 15]};
  return out;
}

std::optional<Nonce> nonce_from_hex(std::string_view hex) {
  Nonce nonce{};
  if (hex.size() != 2 * nonce.size()) return std::nullopt;
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    const auto end = hex.data() + 2 * i + 2;
    if (std::from_chars(end - 2, end, nonce[i], 16).ptr != end) return std::nullopt;
  }
  return nonce;
}

Nonce random_nonce() {
  Nonce nonce{};
  std::random_device source;
  for (std::uint8_t& byte : nonce) byte = static_cast<std::uint8_t>(source());
  return nonce;
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw SystemError::from_errno("cannot make a Unix socket", errno);
  return fd;
}

/// An address without a file: the first byte of the path is zero.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& socket_name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(socket_name.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path + 1, socket_name.data(), socket_name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket_name.size())};
}

bool send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

/// Empty when the other side has closed the connection.
UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return UniqueFd();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return UniqueFd();
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return UniqueFd(descriptor);
}

/// The keys of one meeting in the store, and the way in which ranks tell each other why it failed.
class Board {
 public:
  Board(Store& store, int rank, int size, const CommOptions& options)
      : store_(store),
        rank_(rank),
        size_(size),
        options_(options),
        deadline_(Clock::now() + options.rendezvous_timeout) {
    const std::string base = text("lockstep/comm/", options.name, "/");
    prefix_ = text(base, store.add(text(base, "visits/", rank), 1), "/");
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  milliseconds time_left() const {
    return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()));
  }
  /// Rank 0 knows who is missing. The others give it this much longer, so that its word is the one that all report.
  void let_rank_zero_judge() { deadline_ += milliseconds(1000); }

  void publish(const std::string& address) { store_.set(prefix_ + "address", address); }
  std::string find_address() {
    try {
      return store_.get(prefix_ + "address", time_left());
    } catch (const TimeoutError& error) {
      throw TimeoutError(text("rank ", rank_, ": rank 0 did not open communicator \"", options_.name, "\" within ",
                              format_duration(options_.rendezvous_timeout)),
                         "look for an earlier error at rank 0");
    }
  }

  /// Lets the ranks that are still waiting end with the same text, then throws it.
  template <typename Failure>
  [[noreturn]] void fail(const std::string& message, const std::string& hint) {
    store_.set(prefix_ + "failure", message);
    store_.add(prefix_ + "failures", 1);
    throw Failure(message, hint);
  }
  void throw_if_failed() {
    if (store_.add(prefix_ + "failures", 0) == 0) return;
    throw CommError(text("rank ", rank_, ": ", store_.get(prefix_ + "failure", milliseconds(1000))));
  }
  std::string label() const { return text("communicator \"", options_.name, "\""); }
  std::string patience() const { return format_duration(options_.rendezvous_timeout); }

 private:
  Store& store_;
  int rank_;
  int size_;
  const CommOptions& options_;
  Clock::time_point deadline_;
  std::string prefix_;
};

/// Rank 0's side: accepts connections until every rank has proved that it belongs to the job.
class Doorkeeper {
 public:
  Doorkeeper(Board& board, const Nonce& nonce)
      : board_(board),
        nonce_(nonce),
        listener_(make_socket()),
        guests_(static_cast<std::size_t>(board.size())),
        pids_(guests_.size(), 0) {
    socket_name_ = "lockstep-" + to_hex(random_nonce());
    const auto [address, length] = abstract_address(socket_name_);
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), board.size() + 8) != 0) {
      throw SystemError::from_errno("cannot listen on an abstract Unix socket", errno);
    }
  }

  const std::string& socket_name() const { return socket_name_; }
  std::int32_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  std::vector<PeerSocket> admit_all() {
    while (true) {
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) break;
      if (board_.time_left() == milliseconds(0)) fail_missing(missing);
      wait_for_events();
      board_.throw_if_failed();
    }
    std::vector<PeerSocket> peers;
    for (int rank = 1; rank < board_.size(); ++rank) {
      peers.push_back({rank, std::move(guests_[static_cast<std::size_t>(rank)])});
    }
    return peers;
  }

 private:
  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < board_.size(); ++rank) {
      if (!guests_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    return missing;
  }

  [[noreturn]] void fail_missing(const std::vector<int>& missing) {
    std::vector<std::string> numbers;
    for (const int rank : missing) numbers.push_back(text(rank));
    board_.fail<TimeoutError>(text(board_.label(), ": ", missing.size() == 1 ? "rank " : "ranks ", join(numbers, ", "),
                                   " of ", board_.size(), " did not appear within ", board_.patience()),
                              "look at the output of the missing ranks");
  }

  void wait_for_events() {
    std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
    for (const UniqueFd& fd : strangers_) watched.push_back({fd.get(), POLLIN, 0});
    const std::size_t first_guest = watched.size();
    std::vector<int> guest_ranks;
    for (int rank = 1; rank < board_.size(); ++rank) {
      if (!guests_[static_cast<std::size_t>(rank)]) continue;
      watched.push_back({guests_[static_cast<std::size_t>(rank)].get(), POLLIN, 0});
      guest_ranks.push_back(rank);
    }
    const auto slice = std::min(board_.time_left(), milliseconds(200));
    if (::poll(watched.data(), watched.size(), static_cast<int>(slice.count())) <= 0) return;
    for (std::size_t i = first_guest; i < watched.size(); ++i) {
      if (watched[i].revents != 0) lose_guest(guest_ranks[i - first_guest]);
    }
    for (std::size_t i = first_guest - 1; i >= 1; --i) {
      if (watched[i].revents == 0) continue;
      UniqueFd stranger = std::move(strangers_[i - 1]);
      strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i - 1));
      greet(std::move(stranger));
    }
    if (watched[0].revents != 0) {
      UniqueFd stranger(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (stranger) strangers_.push_back(std::move(stranger));
    }
  }

  [[noreturn]] void lose_guest(int rank) {
    board_.throw_if_failed();
    board_.fail<CommError>(
        text("rank ", rank, " (pid ", pid(rank), ") ended while ", board_.label(), " was waiting for other ranks"),
        text("look at the output of rank ", rank));
  }

  /// A connection that does not prove the nonce is closed and forgotten: it belongs to someone else.
  void greet(UniqueFd stranger) {
    Hello hello;
    if (::recv(stranger.get(), &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello) || hello.nonce != nonce_ ||
        hello.rank < 1 || hello.rank >= board_.size()) {
      return;
    }
    const auto index = static_cast<std::size_t>(hello.rank);
    if (guests_[index]) {
      board_.fail<CommError>(text("two processes (pid ", pids_[index], " and ", hello.pid, ") call themselves rank ",
                                  hello.rank, " of ", board_.label()),
                             "every process needs a RANK of its own");
    }
    pids_[index] = hello.pid;
    guests_[index] = std::move(stranger);
  }

  Board& board_;
  Nonce nonce_;
  UniqueFd listener_;
  std::string socket_name_;
  std::vector<UniqueFd> strangers_;  ///< connected, not yet proved
  std::vector<UniqueFd> guests_;     ///< by rank
  std::vector<std::int32_t> pids_;
};

Meeting host_meeting(Board& board) {
  const Nonce nonce = random_nonce();
  const std::size_t bytes = Segment::size_bytes(board.size());
  const UniqueFd memory = make_memory_file("lockstep-comm", bytes);
  auto segment = std::make_shared<Segment>(
      Segment::create(MappedMemory::shared(memory.get(), bytes), board.size(), nonce, FutexScope::kProcesses));
  Doorkeeper doorkeeper(board, nonce);
  board.publish(join({doorkeeper.socket_name(), to_hex(nonce), text(board.size()), host_name()}, " "));
  std::vector<PeerSocket> peers = doorkeeper.admit_all();
  segment->control(0).pid.store(::getpid());
  for (const PeerSocket& peer : peers) segment->control(peer.rank).pid.store(doorkeeper.pid(peer.rank));
  // A rank that is gone by now is noticed in the first collective, where its connection is looked at.
  for (const PeerSocket& peer : peers) send_descriptor(peer.fd.get(), memory.get());
  return {std::move(segment), std::move(peers)};
}

UniqueFd connect_to_host(Board& board, const std::string& socket_name, const std::string& rank_zero_host) {
  UniqueFd fd = make_socket();
  const auto [address, length] = abstract_address(socket_name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  board.throw_if_failed();
  board.fail<CommError>(
      text(board.label(), " needs all ranks on one host: rank ", board.rank(), " on host ", host_name(),
           " cannot reach rank 0 on host ", rank_zero_host, " (", std::strerror(errno), ")"),
      "start all ranks on one host and in one network namespace (one container)");
}

UniqueFd await_memory(Board& board, int socket) {
  while (true) {
    pollfd watched{socket, POLLIN, 0};
    const auto slice = std::min(board.time_left(), milliseconds(1000));
    if (::poll(&watched, 1, static_cast<int>(slice.count())) > 0) break;
    board.throw_if_failed();
    if (board.time_left() == milliseconds(0)) {
      throw TimeoutError(
          text("rank ", board.rank(), ": ", board.label(), " was not complete within ", board.patience()),
          "look at the output of rank 0");
    }
  }
  UniqueFd memory = receive_descriptor(socket);
  if (memory) return memory;
  board.throw_if_failed();
  board.fail<CommError>(text("rank ", board.rank(), ": rank 0 closed the connection of ", board.label(),
                             " without handing over its memory: it ended, or this rank belongs to another job"),
                        "look at the output of rank 0");
}

Meeting join_meeting(Board& board) {
  const std::string published = board.find_address();
  const std::vector<std::string> words = split(published, ' ');
  const auto nonce = words.size() == 4 ? nonce_from_hex(words[1]) : std::nullopt;
  if (!nonce || words[0].size() > 100) {
    board.fail<CommError>(text("rank ", board.rank(), ": the store holds no valid address of ", board.label()),
                          "run the same build of Lockstep in every rank");
  }
  if (words[2] != text(board.size())) {
    board.fail<CommError>(text("rank ", board.rank(), " counts ", board.size(), " ranks in ", board.label(),
                               ", rank 0 counts ", words[2]),
                          "every process needs the same WORLD_SIZE");
  }
  UniqueFd fd = connect_to_host(board, words[0], words[3]);
  board.let_rank_zero_judge();
  Hello hello{*nonce, board.rank(), ::getpid()};
  // A failed send shows as a closed connection below.
  (void)!::send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
  const UniqueFd memory = await_memory(board, fd.get());
  struct stat status {};
  const std::size_t bytes = Segment::size_bytes(board.size());
  if (::fstat(memory.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    throw CommError(text("rank ", board.rank(), ": the shared memory of ", board.label(), " has another size"),
                    "run the same build of Lockstep in every rank");
  }
  auto segment =
      std::make_shared<Segment>(Segment::attach(MappedMemory::shared(memory.get(), bytes), board.size(), *nonce));
  std::vector<PeerSocket> peers;
  peers.push_back({0, std::move(fd)});
  return {std::move(segment), std::move(peers)};
}

}  // namespace

Meeting meet(Store& store, int rank, int size, const CommOptions& options) {
  Board board(store, rank, size, options);
  return rank == 0 ? host_meeting(board) : join_meeting(board);
}

std::unique_ptr<Communicator> make_shm_communicator(Store& store, int rank, int size, const CommOptions& options) {
  LOCKSTEP_CHECK(size >= 1 && rank >= 0 && rank < size);
  if (size == 1) return make_lone_communicator("shm");
  Meeting meeting = meet(store, rank, size, options);
  return make_engine_communicator(
      std::make_shared<Engine>(std::move(meeting.segment), rank, "shm", options, std::move(meeting.peers)));
}

}  // namespace lockstep::comm
