#include "dist/run_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/file_store.h"

extern char** environ;

namespace lockstep::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kRankVariable = "LOCKSTEP_TEST_RANK";
constexpr const char* kWorldVariable = "LOCKSTEP_TEST_WORLD";
constexpr const char* kCallVariable = "LOCKSTEP_TEST_CALL";
constexpr const char* kFolderVariable = "LOCKSTEP_TEST_FOLDER";
constexpr milliseconds kGraceAfterFailure{10000};

std::string current_test_name() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  LOCKSTEP_CHECK(test != nullptr);
  return text(test->test_suite_name(), ".", test->name());
}

/// 0 for the first run_ranks() of the current test, and so on.
int next_call_index() {
  static std::string test;
  static int count = 0;
  const std::string now = current_test_name();
  if (now != test) count = 0;
  test = now;
  return count++;
}

int number_from_environment(const char* name) {
  const char* value = std::getenv(name);
  long long number = 0;
  LOCKSTEP_CHECK(value != nullptr && parse_number(value, number));
  return static_cast<int>(number);
}

/// The child's side: runs the body and ends the process.
[[noreturn]] void become_rank(const std::function<void(RankContext&)>& body) {
  const std::filesystem::path folder = std::getenv(kFolderVariable);
  int code = 0;
  {
    comm::FileStore store(folder / "store");
    RankContext context{number_from_environment(kRankVariable), number_from_environment(kWorldVariable), store, folder};
    try {
      body(context);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d threw: %s\n", context.rank, error.what());
      code = 1;
    }
  }
  if (::testing::Test::HasFailure()) code = 1;
  std::exit(code);
}

std::vector<std::string> environment_for_rank(int rank, int world, int call, const std::filesystem::path& folder,
                                              const RunRanksOptions& options) {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || line.starts_with("GTEST_")) continue;
    values[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) values[name] = value;
  values[kRankVariable] = text(rank);
  values[kWorldVariable] = text(world);
  values[kCallVariable] = text(call);
  values[kFolderVariable] = folder.string();
  std::vector<std::string> lines;
  for (const auto& [name, value] : values) lines.push_back(text(name, "=", value));
  return lines;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// One rank's process; killed and reaped at the end of its life.
class RankProcess {
 public:
  RankProcess(int rank, int world, int call, const std::filesystem::path& folder, const RunRanksOptions& options)
      : rank_(rank), output_path_(folder / text("rank", rank, ".log")) {
    std::vector<std::string> arguments = {"/proc/self/exe", text("--gtest_filter=", current_test_name()),
                                          "--gtest_brief=1", "--gtest_repeat=1", "--gtest_also_run_disabled_tests"};
    std::vector<std::string> environment = environment_for_rank(rank, world, call, folder, options);
    const std::vector<char*> argv = pointers_to(arguments);
    const std::vector<char*> envp = pointers_to(environment);
    const UniqueFd output(::open(output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!output) throw SystemError::from_errno(text("cannot write ", output_path_.string()), errno);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw SystemError::from_errno("cannot fork", errno);
    if (pid_ == 0) {
      // Only async-signal-safe calls here: the parent may have threads.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      ::dup2(output.get(), STDOUT_FILENO);
      ::dup2(output.get(), STDERR_FILENO);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    kill();
    while (!has_ended(0) && errno == EINTR) {
    }
  }

  int rank() const { return rank_; }
  void kill() {
    if (!status_) ::kill(pid_, SIGKILL);
  }

  bool has_ended(int wait_flags = WNOHANG) {
    if (status_) return true;
    int status = 0;
    if (::waitpid(pid_, &status, wait_flags) == pid_) status_ = status;
    return status_.has_value();
  }

  /// "" when it ended as expected, else how it ended.
  std::string complaint(const RunRanksOptions& options) const {
    ExpectedEnd expected{rank_, 0, 0};
    for (const ExpectedEnd& end : options.expected_ends) {
      if (end.rank == rank_) expected = end;
    }
    const int signal = WIFSIGNALED(*status_) ? WTERMSIG(*status_) : 0;
    const int exit_code = WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 0;
    if (signal == expected.signal && (signal != 0 || exit_code == expected.exit_code)) return {};
    return signal != 0 ? text("killed by ", strsignal(signal)) : text("exit code ", exit_code);
  }

  std::string last_lines() const {
    constexpr std::size_t kLines = 30;
    std::vector<std::string> lines = split(read_file(output_path_), '\n');
    std::erase_if(lines, [](const std::string& line) { return line.empty() || line.starts_with("Running main()"); });
    if (lines.size() > kLines) lines.erase(lines.begin(), lines.end() - kLines);
    std::string out;
    for (const std::string& line : lines) out += text("  [rank ", rank_, "] ", line, "\n");
    return out;
  }

 private:
  int rank_;
  std::filesystem::path output_path_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Waits for all; returns what went wrong, one line a fault.
std::vector<std::string> watch(std::vector<std::unique_ptr<RankProcess>>& ranks, const RunRanksOptions& options) {
  std::vector<std::string> faults;
  std::vector<bool> reported(ranks.size(), false);
  auto deadline = Clock::now() + options.deadline;
  while (true) {
    bool all_ended = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      all_ended = ranks[i]->has_ended() && all_ended;
      if (!ranks[i]->has_ended() || reported[i]) continue;
      reported[i] = true;
      const std::string complaint = ranks[i]->complaint(options);
      if (complaint.empty()) continue;
      faults.push_back(text("rank ", ranks[i]->rank(), ": ", complaint));
      deadline = std::min(deadline, Clock::now() + kGraceAfterFailure);
    }
    if (all_ended) return faults;
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (const auto& rank : ranks) {
    if (!rank->has_ended()) faults.push_back(text("rank ", rank->rank(), ": still running, killed"));
  }
  for (const auto& rank : ranks) rank->kill();
  return faults;
}

}  // namespace

bool is_rank_process() {
  return std::getenv(kRankVariable) != nullptr;
}

void run_ranks(int world, const std::function<void(RankContext&)>& body, const RunRanksOptions& options) {
  LOCKSTEP_CHECK(world >= 1);
  const int call = next_call_index();
  if (is_rank_process()) {
    if (call == number_from_environment(kCallVariable)) become_rank(body);
    return;
  }
  const TemporaryDirectory folder("lockstep-ranks");
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>(rank, world, call, folder.path(), options));
  }
  const std::vector<std::string> faults = watch(ranks, options);
  if (faults.empty()) return;
  std::string report = text("run_ranks, call ", call, " of this test, ", world, " ranks:\n  ", join(faults, "\n  "),
                            "\nlast lines of each rank:\n");
  for (const auto& rank : ranks) report += rank->last_lines();
  ADD_FAILURE() << report;
}

}  // namespace lockstep::testing
