#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "dist/run_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/c10d/tcp_store.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::c10d {
namespace {

using ::lockstep::testing::RankContext;
using ::lockstep::testing::run_ranks;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Listener {
  UniqueFd fd;
  int port = 0;
};

Listener listen_on(in_addr_t address = INADDR_LOOPBACK) {
  Listener listener{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(address);
  socklen_t length = sizeof(name);
  if (::bind(listener.fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0 ||
      ::listen(listener.fd.get(), 64) != 0 ||
      ::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    throw SystemError::from_errno("listen", errno);
  }
  listener.port = ntohs(name.sin_port);
  return listener;
}

std::unique_ptr<comm::Store> connect(int port, milliseconds timeout = seconds(20)) {
  TcpStoreOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.connect_timeout = timeout;
  return connect_tcp_store(options);
}

std::unique_ptr<comm::Store> serve(Listener& listener) {
  TcpStoreOptions options;
  options.serve_here = true;
  options.listen_fd = listener.fd.release();
  return connect_tcp_store(options);
}

template <typename Failure, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Failure& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

bool accepts_connections(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
}

void use_as_client(RankContext& context, int port, int num_clients) {
  const auto store = connect(port);
  store->set(text("from", context.rank), std::string("\0binary\n", 8));
  for (int rank = 0; rank < num_clients; ++rank) {
    EXPECT_EQ(store->get(text("from", rank), seconds(20)), std::string("\0binary\n", 8));
  }
  store->add("sum", context.rank + 1);
  const auto comm = comm::make_shm_communicator(*store, context.rank, num_clients, {});
  comm->barrier();
  EXPECT_EQ(store->add("sum", 0), num_clients * (num_clients + 1) / 2);
  EXPECT_THAT(message_of<TimeoutError>([&] { store->get("never set", milliseconds(50)); }),
              AllOf(HasSubstr("never set"), HasSubstr(text("127.0.0.1:", port)), HasSubstr("50 ms")));
  EXPECT_EQ(store->add("sum", 0), num_clients * (num_clients + 1) / 2) << "a timeout leaves the store usable";
  comm->barrier();
}

TEST(TcpStore, ClientsMeetAtAServerOfItsOwnThatEndsBySigterm) {
  run_ranks(3, [](RankContext& context) {
    if (context.rank == 2) {
      Listener listener = listen_on();
      context.store.set("port", text(listener.port));
      context.store.set("pid", text(::getpid()));
      serve_store(listener.fd.release());
      return;
    }
    const int port = std::stoi(context.store.get("port", seconds(20)));
    use_as_client(context, port, 2);
    if (context.rank != 0) return;
    const pid_t server = std::stoi(context.store.get("pid", seconds(20)));
    ::kill(server, SIGINT);  // Ctrl-C reaches every process of the terminal; the ranks still need the store
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_NO_THROW(connect(port)->set("after", "SIGINT"));
    ::kill(server, SIGTERM);
  });
}

TEST(TcpStore, RankZeroServesOnAWildcardSocketThatItWasGiven) {
  run_ranks(2, [](RankContext& context) {
    if (context.rank == 0) {
      Listener listener = listen_on(INADDR_ANY);
      const int port = listener.port;
      const auto server = serve(listener);
      context.store.set("port", text(port));
      use_as_client(context, port, 2);
      context.store.get("done", seconds(20));
    } else {
      use_as_client(context, std::stoi(context.store.get("port", seconds(20))), 2);
      context.store.set("done", "");
    }
  });
}

TEST(TcpStore, AServerWhoseParentIsGoneEnds) {
  run_ranks(1, [](RankContext&) {
    Listener listener = listen_on();
    const pid_t parent = ::fork();
    if (parent == 0) {
      if (::fork() == 0) {
        serve_store(listener.fd.release());
        ::_exit(0);
      }
      ::close(listener.fd.release());
      std::this_thread::sleep_for(milliseconds(1500));
      ::_exit(0);
    }
    listener.fd.reset();
    EXPECT_NO_THROW(connect(listener.port)->set("a", "b"));
    ::waitpid(parent, nullptr, 0);
    const auto deadline = std::chrono::steady_clock::now() + seconds(5);
    while (accepts_connections(listener.port) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_FALSE(accepts_connections(listener.port));
  });
}

TEST(TcpStore, AnUnreachableServerIsNamed) {
  Listener listener = listen_on();
  listener.fd.reset();  // nobody listens there now
  const std::string message = message_of<CommError>([&] { connect(listener.port, milliseconds(300)); });
  EXPECT_THAT(message, AllOf(HasSubstr(text("127.0.0.1:", listener.port)), HasSubstr("MASTER_PORT")));
}

TEST(TcpStore, AServerThatHasEndedIsAnErrorNotAHang) {
  Listener listener = listen_on();
  const int port = listener.port;
  auto server = serve(listener);
  const auto client = connect(port);
  client->set("a", "b");
  server.reset();
  EXPECT_THAT(message_of<CommError>([&] { client->get("missing", seconds(5)); }),
              AllOf(HasSubstr("missing"), HasSubstr(text("127.0.0.1:", port)), HasSubstr("ended")));
}

TEST(TcpStore, AWaitingThreadDoesNotKeepAnotherFromSetting) {
  Listener listener = listen_on();
  const auto store = serve(listener);
  std::thread waiter([&] { EXPECT_EQ(store->get("late", seconds(20)), "value"); });
  std::this_thread::sleep_for(milliseconds(100));
  const auto start = std::chrono::steady_clock::now();
  store->set("late", "value");
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST(TcpStore, ADescriptorThatIsNoListeningSocketIsRefused) {
  TcpStoreOptions options;
  options.serve_here = true;
  options.listen_fd = STDIN_FILENO;
  EXPECT_THAT(message_of<CommError>([&] { connect_tcp_store(options); }), HasSubstr("descriptor 0 is not a listening"));
}

TEST(TcpStore, PythonsClientTalksToOurServer) {
  const char* python = std::getenv("LOCKSTEP_PYTHON");
  ASSERT_TRUE(python != nullptr && *python != '\0') << "LOCKSTEP_PYTHON is empty: this test needs a Python with torch; "
                                                       "scripts/test.sh --no-python-tests goes without";
  Listener listener = listen_on();
  const int port = listener.port;
  const auto store = serve(listener);
  store->set("from_cpp", "hello");
  store->add("count", 2);
  const TemporaryDirectory folder("tcp-store-python");
  const auto script = folder.path() / "client.py";
  std::ofstream(script) << "import sys, torch.distributed as dist\n"
                           "store = dist.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False,\n"
                           "                      wait_for_workers=False)\n"
                           "assert store.get('from_cpp') == b'hello'\n"
                           "assert store.add('count', 3) == 5\n"
                           "store.set('from_python', 'bonjour')\n";
  EXPECT_EQ(std::system(text("'", python, "' '", script.string(), "' ", port).c_str()), 0);
  EXPECT_EQ(store->get("from_python", milliseconds(0)), "bonjour");
  EXPECT_EQ(store->get("count", milliseconds(0)), "5");
}

}  // namespace
}  // namespace lockstep::c10d
