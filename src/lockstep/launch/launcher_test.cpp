#include "lockstep/launch/launcher.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/host/cpus.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/environment.h"
#include "lockstep/launch/launcher_test.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// This test program is its own rank program: started with this variable it acts before any test runs.
// "STEP N exit C", "STEP N abort", "STEP N kill": reports N finished steps and ends that way on rank 1; rank 0 waits.
const bool kActedAsRank = [] {
  const char* task = std::getenv("LAUNCHER_TEST_TASK");
  if (task == nullptr) return false;
  const auto words = split(task, ' ');
  const std::string rank = std::getenv("RANK");
  auto board = StatusBoard::from_environment();
  if (!board) ::_exit(90);
  board->set_step(std::stoi(std::getenv("LOCAL_RANK")), std::stoi(words.at(1)));
  if (rank != "1") ::sleep(60);
  if (words.at(2) == "abort") ::signal(SIGABRT, SIG_DFL), std::abort();
  if (words.at(2) == "kill") ::kill(::getpid(), SIGKILL);
  ::_exit(std::stoi(words.at(3)));
}();

TEST(Launcher, AllRanksSucceed) {
  const auto outcome = run(shell(3, "echo hello from $RANK of $WORLD_SIZE; echo oops >&2"));
  EXPECT_EQ(outcome.result.exit_code, 0);
  EXPECT_FALSE(outcome.result.first_failure);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.out, HasSubstr(text("[rank ", rank, "] hello from ", rank, " of 3\n")));
    EXPECT_THAT(outcome.err, HasSubstr(text("[rank ", rank, "] oops\n")));
  }
}

TEST(Launcher, WorkerEnvironmentIsTorchruns) {
  ::unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  auto options = shell(2, "env; ls -ld $(dirname $TORCHELASTIC_ERROR_FILE)");
  options.environment = {{"MINE", "a=b"}, {"RANK", "77"}};
  const auto outcome = run(options);
  for (const char* line :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
        "ROLE_RANK=1", "ROLE_WORLD_SIZE=2", "ROLE_NAME=default", "MASTER_ADDR=127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=0", "TORCHELASTIC_USE_AGENT_STORE=False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "LOCKSTEP_LAUNCHER=1", "MINE=a=b"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text("[rank 1] ", line, "\n")));
  }
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] TORCHELASTIC_ERROR_FILE="));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] TORCHELASTIC_RUN_ID=lockstep-"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] LOCKSTEP_STATUS_FD="));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] LOCKSTEP_STORE_FD="));
  EXPECT_THAT(outcome.out, Not(HasSubstr("[rank 1] LOCKSTEP_STORE_FD=")));
}

TEST(Launcher, RankZeroHoldsTheListeningSocketAndNobodyElseOurDescriptors) {
  const auto outcome = run(shell(2, R"sh(for f in /proc/$$/fd/*; do echo "fd $(readlink $f)"; done; sleep 0.3)sh"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] fd socket:"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("[rank 1] fd socket:")));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] fd /dev/null"));
  for (const char* ours : {"signalfd", "eventpoll", "pidfd"}) EXPECT_THAT(outcome.out, Not(HasSubstr(ours)));
}

TEST(Launcher, ExplicitPortIsUsedAndABusyOneIsNamed) {
  const int holder = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  ASSERT_EQ(::bind(holder, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(::listen(holder, 1), 0);
  ::getsockname(holder, reinterpret_cast<sockaddr*>(&name), &size);
  auto options = shell(1, "echo port $MASTER_PORT");
  options.master_port = ntohs(name.sin_port);
  try {
    run(options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--master-port"), HasSubstr(text(*options.master_port))));
  }
  ::close(holder);
  EXPECT_THAT(run(options).out, HasSubstr(text("port ", *options.master_port)));
}

TEST(Launcher, BR082_TheFirstFailureIsNamedWithItsStepAndItsLastLines) {
  char self[4096] = {};
  ASSERT_GT(::readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  struct Case {
    const char* task;
    const char* words;
    int code;
  };
  for (const Case& c :
       {Case{"STEP 5 exit 3", "exited with 3 at step 5", 3}, Case{"STEP 6 abort", "killed by SIGABRT at step 6", 134},
        Case{"STEP 0 kill", "killed by SIGKILL at step 0", 137}}) {
    LaunchOptions options = shell(3, "");
    options.command = {self};
    options.environment["LAUNCHER_TEST_TASK"] = c.task;
    const auto outcome = run(options);
    EXPECT_EQ(outcome.result.exit_code, c.code);
    ASSERT_TRUE(outcome.result.first_failure);
    EXPECT_EQ(outcome.result.first_failure->rank, 1);
    EXPECT_THAT(outcome.err,
                ::testing::ContainsRegex(text("lockstep: rank 1 \\(host [^,]+, pid ", outcome.result.first_failure->pid,
                                              "\\) failed first: ", c.words, "\n")));
    EXPECT_THAT(outcome.err, HasSubstr("rank 0 (pid "));
    EXPECT_THAT(outcome.err, HasSubstr("ended by us (killed by SIGTERM after SIGTERM)"));
    EXPECT_LT(outcome.seconds, 2);
  }
}

TEST(Launcher, LastLinesAreStandardErrorElseStandardOutputAndAtMostThirty) {
  auto outcome = run(shell(1, "for i in $(seq 1 40); do echo line $i; done; printf unfinished; exit 1"));
  ASSERT_TRUE(outcome.result.first_failure);
  EXPECT_FALSE(outcome.result.first_failure->step);
  EXPECT_EQ(outcome.result.first_failure->last_lines.size(), 30u);
  EXPECT_EQ(outcome.result.first_failure->last_lines.front(), "line 12");
  EXPECT_EQ(outcome.result.first_failure->last_lines.back(), "unfinished");
  EXPECT_THAT(outcome.err, HasSubstr("failed first: exited with 1\n"));
  outcome = run(shell(1, "echo out; printf 'why\\033[2J' >&2; exit 1"));
  EXPECT_EQ(outcome.result.first_failure->last_lines, std::vector<std::string>{"why\033[2J"});
  EXPECT_THAT(outcome.err, HasSubstr("lockstep:     why?[2J\n")) << "repeated lines must not act on the terminal";
}

TEST(Launcher, HundredThousandLinesAreNotLost) {
  TemporaryDirectory logs("launcher-logs");
  auto options = shell(2, "seq 1 50000; seq 1 50000 >&2; printf end");
  options.log_dir = logs.path();
  const auto outcome = run(options);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2 * 50001);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[rank 1] 50000\n"), HasSubstr("[rank 1] end\n")));
  for (const char* rank : {"0", "1"}) {
    const std::string log = read_file(logs.path() / "attempt_0" / rank / "stdout.log");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 50000);
    EXPECT_TRUE(log.ends_with("\n50000\nend"));
    EXPECT_TRUE(read_file(logs.path() / "attempt_0" / rank / "stderr.log").ends_with("\n50000\n"));
  }
  EXPECT_TRUE(fs::exists(logs.path() / "launcher.log"));
}

TEST(Launcher, BinaryAndVeryLongLines) {
  TemporaryDirectory logs("launcher-logs");
  auto options = shell(1, "printf 'a\\000b\\377\\n'; head -c 1000000 /dev/zero | tr '\\0' x");
  options.log_dir = logs.path();
  const auto outcome = run(options);
  EXPECT_THAT(outcome.out, HasSubstr(std::string("[rank 0] a\0b\377\n", 14)));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'x'), 1000000);
  EXPECT_EQ(read_file(logs.path() / "attempt_0/0/stdout.log").size(), 1000005u);
}

TEST(Launcher, AHelperThatKeepsThePipeDoesNotHoldUpTheEnd) {
  auto options = shell(1, "sleep 100 & echo last words; exit 5");
  const auto outcome = run(options);
  EXPECT_EQ(outcome.result.exit_code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("last words"));
  EXPECT_LT(outcome.seconds, 2);
}

TEST(Launcher, QuietStdoutAndNoPrefix) {
  auto options = shell(1, "echo out");
  options.quiet_stdout = true;
  options.prefix_output = false;
  const auto outcome = run(options);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("out\n"), Not(HasSubstr("[rank"))));
}

TEST(Launcher, AStoppedReaderDoesNotStopTheWatching) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  LauncherProcess launcher(shell(2, "exec yes"), [&] { ::dup2(pipe_fds[1], STDOUT_FILENO); });
  ::close(pipe_fds[1]);
  ASSERT_TRUE(launcher.wait_for_living(2));
  ::usleep(300000);
  ::kill(launcher.pid(), SIGINT);
  ::usleep(100000);
  EXPECT_TRUE(launcher.wait_for_living(0));
  ::kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.wait(), 130);
  ::close(pipe_fds[0]);
}

TEST(Launcher, AClosedReaderDoesNotEndTheJob) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  TemporaryDirectory logs("launcher-logs");
  auto options = shell(1, "seq 1 20000; exit 0");
  options.log_dir = logs.path();
  LauncherProcess launcher(options, [&] {
    ::dup2(pipe_fds[1], STDOUT_FILENO);
    ::close(pipe_fds[0]);
    ::close(pipe_fds[1]);
  });
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_TRUE(read_file(logs.path() / "attempt_0/0/stdout.log").ends_with("\n20000\n"));
}

TEST(Launcher, StandardDescriptorsMayBeClosed) {
  LauncherProcess launcher(shell(2, "echo x; exit 3"), [] {
    for (const int fd : {0, 1, 2}) ::close(fd);
  });
  EXPECT_EQ(launcher.wait(), 3);
}

TEST(Launcher, AnInheritedIgnoreOfSigchldDoesNotLoseExitCodes) {
  LauncherProcess launcher(shell(2, "exit $((RANK * 9))"), [] { ::signal(SIGCHLD, SIG_IGN); });
  EXPECT_EQ(launcher.wait(), 9);
}

TEST(Launcher, ProgramsThatCannotRun) {
  TemporaryDirectory folder("launcher-program");
  const auto message = [](const std::string& program) {
    LaunchOptions options = shell(2, "");
    options.command = {program};
    try {
      run(options);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("it ran");
  };
  const auto file = [&](const char* name, const char* content, int mode) {
    const fs::path path = folder.path() / name;
    std::ofstream(path) << content;
    ::chmod(path.c_str(), static_cast<mode_t>(mode));
    return path.string();
  };
  EXPECT_THAT(message("/no/such/program"), HasSubstr("'/no/such/program': No such file"));
  EXPECT_THAT(message("no-such-program"), HasSubstr("no such program in PATH"));
  EXPECT_THAT(message(""), HasSubstr("cannot run ''"));
  EXPECT_THAT(message(folder.path().string()), HasSubstr("is a folder"));
  EXPECT_THAT(message(file("train.py", "print(1)", 0644)), HasSubstr("python3"));
  EXPECT_THAT(message(file("script", "echo 1", 0755)), HasSubstr("Exec format error"));
  EXPECT_THAT(message(file("bad", "#!/no/interpreter\n", 0755)), HasSubstr("No such file"));
}

TEST(Launcher, BR041i_RankZeroMayLeaveFirst) {
  for (int i = 0; i < 20; ++i) {
    const auto outcome = run(shell(2, "test $RANK = 0 || sleep 0.1"));
    EXPECT_EQ(outcome.result.exit_code, 0);
  }
}

TEST(Launcher, OnTickIsCalledRegularlyAndAtTheEnd) {
  int ticks = 0;
  auto options = shell(1, "sleep 0.5");
  options.on_tick = [&] { ++ticks; };
  run(options);
  EXPECT_GE(ticks, 4);
  EXPECT_LE(ticks, 12);
}

class Store : public ::testing::Test {
 protected:
  fs::path worker(const std::string& script) {
    const fs::path path = folder_.path() / "worker";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }
  Outcome run_with(const fs::path& program) {
    auto options = shell(2, "echo store $TORCHELASTIC_USE_AGENT_STORE port $MASTER_PORT; sleep 0.2");
    options.store_server = StoreServer::kWorkerProcess;
    options.worker_program = program;
    options.environment["LAUNCHER_TEST_MARK"] = "store";
    auto outcome = run(options);
    EXPECT_EQ(outcome.result.exit_code, 0);
    return outcome;
  }
  TemporaryDirectory folder_{"launcher-store"};
};

TEST_F(Store, AWorkerServesOnTheSocketOfTheLauncherAndIsEndedWithTheRanks) {
  const auto outcome =
      run_with(worker(text("echo $$ > ", (folder_.path() / "pid").string(),
                           "; echo $1 $2 $(readlink /proc/$$/fd/$3) >&2; echo ready; exec sleep 100")));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] store True port "));
  EXPECT_THAT(outcome.err, HasSubstr("[store] store --fd socket:"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("warning")));
  EXPECT_LT(outcome.seconds, 1.5);
  EXPECT_FALSE(host::read_process(std::stoi(read_file(folder_.path() / "pid"))));
}

TEST_F(Store, AWorkerThatCannotRunMeansAFreePortAndOneWarning) {
  for (const fs::path& program : {worker("echo libtorch.so: cannot open shared object file >&2; exit 127"),
                                  folder_.path() / "missing", fs::path()}) {
    const auto outcome = run_with(program);
    EXPECT_THAT(outcome.out, HasSubstr("[rank 0] store False port "));
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("lockstep: warning: "), HasSubstr("another program could take")));
    EXPECT_LT(outcome.seconds, 1.5);
  }
}

TEST_F(Store, AWorkerThatSaysNothingIsGivenTwoSeconds) {
  const auto outcome = run_with(worker("exec sleep 100"));
  EXPECT_THAT(outcome.out, HasSubstr("store True"));
  EXPECT_LT(outcome.seconds, 4);
}

TEST(Threads, BR012_FloorOfUsableCpusPerProcessUnlessSet) {
  EXPECT_EQ(choose_threads({}, 6, 1).value, 6);
  EXPECT_EQ(choose_threads({}, 6, 2).value, 3);
  EXPECT_EQ(choose_threads({}, 6, 8).value, 1);
  EXPECT_EQ(choose_threads({}, 56, 8).value, 7);
  EXPECT_THAT(choose_threads({}, 6, 4).message, HasSubstr("OMP_NUM_THREADS=1"));
  EXPECT_EQ(choose_threads({}, 6, 2, 1).value, 1);
  EXPECT_EQ(choose_threads({}, 6, 6, 2).value, 1);
  EXPECT_FALSE(choose_threads("4", 6, 2, 1).value);
  EXPECT_FALSE(choose_threads("4", 6, 2).value);
  EXPECT_EQ(choose_threads("4", 6, 2).message, "");
  for (const char* flagged : {"", "0"}) {
    EXPECT_FALSE(choose_threads(flagged, 6, 2).value);
    EXPECT_TRUE(choose_threads(flagged, 6, 2).is_warning);
    const auto replaced = choose_threads(flagged, 6, 2, std::nullopt, /*replace_nonsense=*/true);
    EXPECT_EQ(replaced.value, 3);
    EXPECT_TRUE(replaced.is_warning);
    EXPECT_THAT(replaced.message,
                HasSubstr(text("OMP_NUM_THREADS='", flagged, "' is no number of threads: it is taken for unset")));
  }
  EXPECT_FALSE(choose_threads("5", 6, 2, std::nullopt, /*replace_nonsense=*/true).value);
}

TEST(Threads, BR012_AUsersValueReachesTheRanksUnchanged) {
  for (const char* value : {"4", "", "0"}) {
    auto options = shell(2, "echo \"threads='$OMP_NUM_THREADS'\"");
    options.environment["OMP_NUM_THREADS"] = value;
    const auto outcome = run(options);
    EXPECT_THAT(outcome.out, HasSubstr(text("[rank 1] threads='", value, "'\n")));
    EXPECT_EQ(outcome.err.find("warning") != std::string::npos, std::string(value) != "4");
  }
}

TEST(Threads, BR012_OwnProgramsGetANumberForNonsense) {
  for (const char* value : {"", "0"}) {
    auto options = shell(2, "echo \"threads='$OMP_NUM_THREADS'\"");
    options.tune_openmp = true;
    options.environment["OMP_NUM_THREADS"] = value;
    EXPECT_THAT(run(options).out, HasSubstr(text("[rank 1] threads='", std::max(1, host::usable_cpus() / 2), "'\n")));
  }
}

TEST(Threads, OwnProgramsGetOpenMpTunedUnlessTheUserChose) {
  const std::vector<std::string> user{"OMP_WAIT_POLICY=active"}, spins{"GOMP_SPINCOUNT=5"};
  const std::string passive = "OMP_WAIT_POLICY=passive";
  JobEnvironment job;
  EXPECT_THAT(rank_environment({}, job, 0), Not(Contains(HasSubstr("OMP_WAIT_POLICY"))));
  job.tune_openmp = true;
  EXPECT_THAT(rank_environment({}, job, 0), AllOf(Contains(passive), Contains("MKL_DYNAMIC=FALSE")));
  EXPECT_THAT(rank_environment({"MKL_DYNAMIC=TRUE"}, job, 0), Contains("MKL_DYNAMIC=TRUE"));
  EXPECT_THAT(rank_environment(user, job, 0), AllOf(Contains(user[0]), Not(Contains(passive))));
  EXPECT_THAT(rank_environment(spins, job, 0), AllOf(Contains(spins[0]), Not(Contains(passive))));
}

}  // namespace
}  // namespace lockstep::launch
