// `lockstep run` as scripts use it: exit codes, refusals, signals, several jobs.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>

#include "e2e/launcher_command.h"

namespace lockstep::e2e {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> shell(int nproc, const std::string& script) {
  return {"run", "--nproc-per-node", text(nproc), "--", "/bin/sh", "-c", script};
}

TEST(LauncherRun, ExitCodesOfTheRanks) {
  Command good(shell(2, "echo rank $RANK"));
  EXPECT_EQ(good.wait(), 0);
  EXPECT_THAT(good.out(), AllOf(HasSubstr("[rank 0] rank 0\n"), HasSubstr("[rank 1] rank 1\n")));

  Command bad(shell(3, "test $RANK = 2 && { echo why >&2; exit 41; }; sleep 100"));
  EXPECT_EQ(bad.wait(), 41);
  EXPECT_THAT(bad.err(), AllOf(HasSubstr("lockstep: rank 2 (host "), HasSubstr(") failed first: exited with 41\n"),
                               HasSubstr("lockstep:     why\n"), HasSubstr("ended by us")));
  EXPECT_TRUE(bad.living().empty());
}

TEST(LauncherRun, BR059_NonsenseIsExitCode2NamesTheFlagAndStartsNothing) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--master-port", "66660"}, "--master-port"},
      {{"--master-port", "0"}, "--master-port"},
      {{"--master-port", "-1"}, "--master-port"},
      {{"--master-port", "29500x"}, "--master-port"},
      {{"--nproc-per-node", ""}, "--nproc-per-node"},
      {{"--nproc-per-node", "0"}, "--nproc-per-node"},
      {{"--nproc-per-node", "-2"}, "--nproc-per-node"},
      {{"--nproc-per-node", "2.5"}, "--nproc-per-node"},
      {{"--nproc-per-node", "GPUS=2"}, "--nproc-per-node"},
      {{"--nproc-per-node", "--work-dir"}, "--nproc-per-node"},
      {{"--nproc", "2", "--nproc", "3"}, "--nproc"},
      {{"--nproc", "2", "--nproc-per-node", "3"}, "--nproc"},
      {{"--no-such-flag"}, "--no-such-flag"}};
  for (const auto& [flags, name] : cases) {
    TemporaryDirectory folder("lockstep-e2e");
    const fs::path witness = folder.path() / "started";
    std::vector<std::string> words{"run"};
    words.insert(words.end(), flags.begin(), flags.end());
    for (const auto& word : {std::string("touch"), witness.string()}) words.push_back(word);
    Command command(words);
    EXPECT_EQ(command.wait(), 2) << join(flags, " ");
    EXPECT_THAT(command.err(), AllOf(HasSubstr("lockstep: error: "), HasSubstr(name))) << join(flags, " ");
    EXPECT_EQ(command.out(), "");
    EXPECT_FALSE(fs::exists(witness)) << join(flags, " ");
  }
}

TEST(LauncherRun, BR059_WordsAfterTheProgramReachItUntouched) {
  Command command({"run", "--nproc_per_node=1", "echo", "--nproc-per-node", "x", "--no-such-flag", "--", "a b"});
  EXPECT_EQ(command.wait(), 0);
  EXPECT_THAT(command.out(), HasSubstr("[rank 0] --nproc-per-node x --no-such-flag -- a b\n"));
}

TEST(LauncherRun, NoProgramAndAProgramThatIsNotThere) {
  Command none({"run", "--nproc", "2"});
  EXPECT_EQ(none.wait(), 2);
  EXPECT_THAT(none.err(), HasSubstr("no program"));
  Command missing({"run", "--nproc", "2", "--", "/no/such/program"});
  EXPECT_EQ(missing.wait(), 2);
  EXPECT_THAT(missing.err(), HasSubstr("/no/such/program"));
}

TEST(LauncherRun, ABusyMasterPortIsNamed) {
  const UniqueFd holder(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  ASSERT_EQ(::bind(holder.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(::listen(holder.get(), 1), 0);
  ::getsockname(holder.get(), reinterpret_cast<sockaddr*>(&name), &size);
  Command command({"run", "--master-port", text(ntohs(name.sin_port)), "--", "true"});
  EXPECT_EQ(command.wait(), 2);
  EXPECT_THAT(command.err(), AllOf(HasSubstr("--master-port"), HasSubstr(text(ntohs(name.sin_port)))));
}

TEST(LauncherRun, LogsOfEachRank) {
  TemporaryDirectory logs("lockstep-e2e");
  Command command({"run", "--nproc", "2", "--log-dir", logs.path().string(), "--", "sh", "-c",
                   "echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE"});
  EXPECT_EQ(command.wait(), 0);
  EXPECT_THAT(read_file(logs.path() / "attempt_0/1/stdout.log"), HasSubstr("out 1\n"));
  EXPECT_EQ(read_file(logs.path() / "attempt_0/1/stderr.log"), "err 1\n");
  EXPECT_THAT(command.out(), HasSubstr((logs.path() / "attempt_0/1/error.json").string()));
}

TEST(LauncherRun, SeveralJobsAtOnceDoNotMeet) {
  std::vector<std::unique_ptr<Command>> jobs;
  for (int job = 0; job < 4; ++job) {
    jobs.push_back(std::make_unique<Command>(shell(2, text("echo port $MASTER_PORT; sleep 0.5; exit ", job))));
  }
  std::vector<std::string> ports;
  for (int job = 0; job < 4; ++job) {
    EXPECT_EQ(jobs[static_cast<std::size_t>(job)]->wait(), job);
    const std::string out = jobs[static_cast<std::size_t>(job)]->out();
    ports.push_back(out.substr(out.find("port "), out.find('\n') - out.find("port ")));
  }
  std::sort(ports.begin(), ports.end());
  EXPECT_EQ(std::unique(ports.begin(), ports.end()), ports.end()) << "two jobs had one port";
}

TEST(LauncherRun, BR053_OneCtrlCTwoCtrlCsAndSigterm) {
  struct Case {
    std::vector<int> signals;
    int code;
  };
  for (const Case& c : {Case{{SIGINT}, 130}, Case{{SIGINT, SIGINT}, 130}, Case{{SIGTERM}, 143}, Case{{SIGHUP}, 129}}) {
    // Each rank has a helper; with two signals the ranks do not react to the first.
    const std::string trap = c.signals.size() == 2 ? "trap '' INT TERM; " : "";
    Command command(shell(2, trap + "sleep 100 & echo up; sleep 100"));
    ASSERT_TRUE(Command::eventually([&] { return split(command.out(), '\n').size() > 2; })) << command.err();
    const auto start = steady_clock::now();
    for (const int signal : c.signals) {
      ::kill(command.pid(), signal);
      ::usleep(100000);
    }
    EXPECT_EQ(command.wait(), c.code);
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(c.signals.size() == 2 ? 1 : 3));
    EXPECT_TRUE(command.living().empty());
  }
}

TEST(LauncherRun, BR053iii_KillingTheLauncherEndsTheJob) {
  Command command(shell(2, "sleep 100 & setsid sleep 100 & echo up; wait"));
  ASSERT_TRUE(Command::eventually([&] { return split(command.out(), '\n').size() > 2; }));
  ::kill(command.pid(), SIGKILL);
  EXPECT_EQ(command.wait(), 137);
  EXPECT_TRUE(Command::eventually([&] { return command.living().empty(); }, 2000));
}

TEST(LauncherRun, BR053v_OtherChildrenOfTheShellSurvive) {
  // The shell becomes the launcher by exec: its background job is then an earlier child of the launcher.
  Command command(
      {"-c",
       text("sleep 50 & echo $! > \"$0\"; exec ", Command::binary(), " run --nproc 2 -- sh -c 'sleep 0.3; exit 6'"),
       (fs::temp_directory_path() / text("lockstep-e2e-bystander-", ::getpid())).string()},
      Command::Terminal::kNone, "/bin/sh");
  EXPECT_EQ(command.wait(), 6);
  const fs::path note = fs::temp_directory_path() / text("lockstep-e2e-bystander-", ::getpid());
  const int bystander = std::stoi(read_file(note));
  fs::remove(note);
  const auto state = host::read_process(bystander);
  EXPECT_TRUE(state && !state->is_zombie());
}

TEST(LauncherRun, BR012_ThreadsAreAnnouncedOnce) {
  Command command({"-u", "OMP_NUM_THREADS", Command::binary(), "run", "--nproc", "2", "--", "sh", "-c",
                   "echo threads=$OMP_NUM_THREADS"},
                  Command::Terminal::kNone, "env");
  EXPECT_EQ(command.wait(), 0);
  const std::string err = command.err();
  EXPECT_THAT(err, HasSubstr("lockstep: OMP_NUM_THREADS="));
  EXPECT_EQ(err.find("OMP_NUM_THREADS="), err.rfind("OMP_NUM_THREADS="));
  Command set({"OMP_NUM_THREADS=5", Command::binary(), "run", "--nproc", "2", "--", "sh", "-c",
               "echo threads=$OMP_NUM_THREADS"},
              Command::Terminal::kNone, "env");
  EXPECT_EQ(set.wait(), 0);
  EXPECT_THAT(set.out(), HasSubstr("[rank 1] threads=5\n"));
}

}  // namespace
}  // namespace lockstep::e2e
