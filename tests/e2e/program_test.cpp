// A program of one's own (examples/020_ddp.cpp) as people start it, rightly and wrongly.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "e2e/train_command.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::e2e {
namespace {

using ::testing::HasSubstr;

std::string program() {
  return text(std::getenv("LOCKSTEP_BUILD_DIR"), "/examples/example_020_ddp");
}

// Bound and released: nobody else asks the kernel for this one so soon.
int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) throw SystemError::from_errno("bind", errno);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.sin_port);
}

// Established connections at their servers' end, of IPv4 and of IPv6 sockets.
int connections_of(int port) {
  int count = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state;
      words >> slot >> local >> remote >> state;
      const auto colon = local.find(':');
      if (colon != std::string::npos && state == "01" && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        ++count;
    }
  }
  return count;
}

TEST(Program, BR064_RanksWithDifferentSeedsAreRefused) {
  Command command({"run", "--nproc", "2", "--", "/bin/sh", "-c", text("exec ", program(), " --seed $RANK")});
  EXPECT_EQ(command.wait(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("--seed differs between ranks: rank 0 has 0, rank 1 has 1"));
  EXPECT_TRUE(command.living().empty());
}

TEST(Program, BR064_SeedsFromTheClockDifferAndBothAreNamed) {
  TemporaryDirectory folder("lockstep-e2e");
  // Nanoseconds, of which --seed takes the last digits: no two ranks read the same.
  Command command({"run", "--nproc", "2", "--", "/bin/sh", "-c",
                   text("seed=1$(date +%s%N | tail -c 15); echo $seed > ", folder.path().string(), "/$RANK; exec ",
                        program(), " --seed $seed")});
  EXPECT_EQ(command.wait(), 2) << command.err();
  const auto seed = [&](const char* rank) { return std::string(trim(read_file(folder.path() / rank))); };
  EXPECT_THAT(command.err(), HasSubstr(text("rank 0 has ", seed("0"), ", rank 1 has ", seed("1"))));
}

TEST(Program, BR064_RandomNumbersDrawnOnOneRankDoNotChangeTheOrder) {
  // Printed by torch.utils.data.DistributedSampler(range(22), 2, rank, seed=5) after set_epoch(epoch), the two ranks in
  // turns: a permutation in each epoch.
  const std::string expected =
      "epoch 0: 9 13 0 3 12 6 5 15 20 8 17 2 1 21 11 10 19 7 4 14 18 16\n"
      "epoch 1: 2 1 5 14 20 21 0 13 4 10 15 7 17 18 9 12 19 6 11 8 16 3\n";
  for (const auto& words : {Words{}, {"draw"}, {"--strategy", "dp", "draw"}}) {
    Command command(Words{"--nproc", "2", "--seed", "5"} + words, Command::Terminal::kNone,
                    text(std::getenv("LOCKSTEP_BUILD_DIR"), "/tests/e2e/order_program"));
    EXPECT_EQ(command.wait(), 0) << command.err();
    std::string printed = command.out();
    for (std::size_t at = 0; (at = printed.find("[rank 0] ")) != std::string::npos;) printed.erase(at, 9);
    EXPECT_EQ(printed, expected);
  }
}

TEST(Program, NprocUnderALauncherIsRefused) {
  Command command({"run", "--nproc", "2", "--", program(), "--nproc", "2"});
  EXPECT_EQ(command.wait(), 2) << command.err();
  EXPECT_THAT(command.err(), HasSubstr("that would start 2 more for each"));
}

TEST(Program, BadFlagsAreRefusedBeforeAnythingStarts) {
  for (const auto& words : {std::vector<std::string>{"--nproc", "0"},
                            {"--nproc", "two"},
                            {"--nproc"},
                            {"--strategy", "zero9"},
                            {"--device", "tpu"},
                            {"--seed", "-1"},
                            {"--nprocs", "2"},
                            {"stray"},
                            {"--seed", "1", "--seed", "2"}}) {
    Command command(words, Command::Terminal::kNone, program());
    EXPECT_EQ(command.wait(), 2) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(words.front()));
  }
}

// Two of three ranks have come; the third never does.
TEST(Program, BR053iv_SigtermEndsARankThatWaitsForItsPeers) {
  const int port = free_port();
  const auto start = [&](int rank) {
    return std::make_unique<Command>(
        Words{text("RANK=", rank), "WORLD_SIZE=3", text("LOCAL_RANK=", rank), "LOCAL_WORLD_SIZE=3",
              "MASTER_ADDR=127.0.0.1", text("MASTER_PORT=", port), program()},
        Command::Terminal::kNone, "env");
  };
  // Rank 0 serves the store and rank 1 has come to it; at rank 0 also a moment later, when it waits for the others.
  for (const int wait_ms : {0, 300}) {
    std::vector<std::unique_ptr<Command>> ranks;
    ranks.push_back(start(0));
    ASSERT_TRUE(Command::eventually([&] { return connections_of(port) >= 1; })) << ranks[0]->err();
    ranks.push_back(start(1));
    ASSERT_TRUE(Command::eventually([&] { return connections_of(port) >= 2; })) << ranks[1]->err();
    ::usleep(static_cast<unsigned>(wait_ms) * 1000);
    for (const auto& rank : ranks) ASSERT_TRUE(rank->is_running()) << rank->err();
    const auto asked = std::chrono::steady_clock::now();
    // The last first: rank 1 must not end because rank 0's store is gone.
    for (const auto& rank : {ranks[1].get(), ranks[0].get()}) {
      ::kill(rank->pid(), SIGTERM);
      EXPECT_EQ(rank->wait(), 143) << rank->err();
      EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(2));
      EXPECT_TRUE(rank->living().empty());
    }
  }
}

TEST(Program, HelpListsTheFlags) {
  Command command({"--help"}, Command::Terminal::kNone, program());
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_THAT(command.out(), HasSubstr("usage: example_020_ddp [FLAGS]"));
  for (const auto* flag : {"--nproc N", "--strategy ddp|dp", "--device auto|cpu|cuda", "--seed N"}) {
    EXPECT_THAT(command.out(), HasSubstr(flag));
  }
}

TEST(Program, AProgramMayHaveArgumentsOfItsOwn) {
  Command command({"--depth", "3", "--nproc", "2", "in.txt", "--help"}, Command::Terminal::kNone,
                  text(std::getenv("LOCKSTEP_BUILD_DIR"), "/tests/e2e/argument_program"));
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_THAT(command.out(), HasSubstr("size 2 --depth 3 in.txt --help\n"));
}

TEST(Program, ARefusalOfAllRanksIsToldOnce) {
  Command command({"run", "--nproc", "2", "--", program(), "--seed", "-1"});
  EXPECT_EQ(command.wait(), 2);
  const std::string message = "--seed: '-1' is not accepted; expected a whole number";
  const std::string err = command.err();
  EXPECT_THAT(err, HasSubstr(text("lockstep: error: ", message)));
  EXPECT_EQ(err.find(message), err.rfind(message)) << err;
  EXPECT_THAT(err, ::testing::Not(HasSubstr("failed first")));
}

TEST(Program, AKilledRankIsNamedWithItsStep) {
  Command command({"--nproc", "2"}, Command::Terminal::kNone, program());
  int pid = 0;
  ASSERT_TRUE(Command::eventually([&] { return (pid = command.rank_pid(1)) != 0; }));
  ::usleep(300000);  // the whole program takes 1.5 s on an idle machine; the name must be right at any moment
  ::kill(pid, SIGKILL);
  EXPECT_EQ(command.wait(), 137) << command.err();
  EXPECT_THAT(command.err(), HasSubstr(text("pid ", pid, ") failed first: killed by SIGKILL")));
  EXPECT_TRUE(command.living().empty());
}

// Without the launcher's word the others wait for five minutes.
TEST(Program, BR082_ARankThatEndsWellWithoutJoiningEndsTheJob) {
  for (const auto* absent : {"0", "1"}) {
    Command command({"run", "--nproc", "3", "--", "/bin/sh", "-c",
                     text("test $RANK = ", absent, " && exit 0; exec ", program(), " --device cpu")});
    ASSERT_TRUE(Command::eventually([&] { return !command.is_running(); }, 60000));
    EXPECT_EQ(command.wait(), 1) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(text("lockstep: rank ", absent, " (host ")));
    EXPECT_THAT(command.err(), HasSubstr("failed first: exited with 0 without joining the job, while rank "));
    EXPECT_TRUE(command.living().empty());
  }
}

// Ranks that divide themselves into worlds of their own wait for no others.
TEST(Program, ARankMayEndEarlyWhereTheOthersAreAWorldOfTheirOwn) {
  Command command({"run", "--nproc", "3", "--", "/bin/sh", "-c",
                   text("test $RANK = 2 && exit 0; test $RANK = 1 && sleep 1; "
                        "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 exec ",
                        program(), " --device cpu")});
  EXPECT_EQ(command.wait(), 0) << command.err();
}

}  // namespace
}  // namespace lockstep::e2e
