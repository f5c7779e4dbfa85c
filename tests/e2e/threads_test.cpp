// BR-012: the ranks of a training run have the threads that were announced, no more and no fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <map>

#include "e2e/train_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int affinity_cpus() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A CPU that this process may use, as taskset wants it.
std::string first_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &set)) ++cpu;
  return text(cpu);
}

struct Setting {
  int nproc = 1;
  int loader_threads = 1;
  std::string model = "mlp";
  std::string prefix = "-u OMP_NUM_THREADS";  // words of `env` before the command
};

class Threads : public ::testing::Test {
 protected:
  // The number that the threads of rank 0 have most of the time: at the end of an epoch loader threads end and start.
  int threads_of_rank_zero(const Setting& setting, int& announced) {
    const TemporaryDirectory folder("lockstep-threads");
    const fs::path run_dir = folder.path() / "run";
    Words words = split_words(setting.prefix);
    // Batches so large that the products are shared among all threads.
    words = words + Words{Command::binary(), "train",
                          "--model",         setting.model,
                          "--data",          "fashion-mnist",
                          "--device",        "cpu",
                          "--nproc",         text(setting.nproc),
                          "--workers",       text(setting.loader_threads),
                          "--batch-size",    "512",
                          "--epochs",        "1000",
                          "--eval-every",    "0",
                          "--run-dir",       run_dir.string()};
    Command command(words, Command::Terminal::kNone, "env");
    const bool trains = Command::eventually(
        [&] {
          return fs::exists(run_dir / "events.jsonl") &&
                 read_file(run_dir / "events.jsonl").find("\"step\"") != std::string::npos;
        },
        30000);
    EXPECT_TRUE(trains) << command.err();
    announced = 0;
    if (const auto at = command.err().find("OMP_NUM_THREADS="); at != std::string::npos) {
      announced = std::atoi(command.err().c_str() + at + 16);
    }
    const fs::path tasks = text("/proc/", command.rank_pid(0), "/task");
    std::map<int, int> seen;
    for (int look = 0; trains && look < 60; ++look, ::usleep(10000)) {
      std::error_code gone;
      ++seen[static_cast<int>(std::distance(fs::directory_iterator(tasks, gone), fs::directory_iterator()))];
    }
    int most = 0;
    for (const auto& [count, times] : seen) {
      if (times > seen[most]) most = count;
    }
    ::kill(command.pid(), SIGTERM);
    EXPECT_EQ(command.wait(), 143) << command.err();
    return most;
  }

 private:
  static Words split_words(const std::string& line) {
    const auto parts = split(line, ' ');
    return Words(parts.begin(), parts.end());
  }
};

TEST_F(Threads, BR012_RanksHaveTheThreadsThatWereAnnounced) {
  const int cpus = affinity_cpus();
  for (const int nproc : {1, 2}) {
    SCOPED_TRACE(text(nproc, " ranks"));
    int announced = 0;
    // What else a rank has, for the store and the like: all but the loader's one and the OpenMP team's others.
    const int base = threads_of_rank_zero({nproc, 1, "cnn", "OMP_NUM_THREADS=1"}, announced) - 1;
    EXPECT_EQ(announced, 0) << "a user's value is not announced";
    const int of_user = threads_of_rank_zero({nproc, 3, "cnn", "OMP_NUM_THREADS=4"}, announced);
    EXPECT_EQ(of_user, base + 3 + (4 - 1));
    EXPECT_EQ(announced, 0);
    const int of_cnn = threads_of_rank_zero({nproc, 1, "cnn"}, announced);
    EXPECT_EQ(announced, std::max(1, cpus / nproc));
    EXPECT_EQ(of_cnn, base + 1 + (announced - 1));
    // The matrix library may take fewer: one for each core, where CPUs are two to a core.
    const int of_mlp = threads_of_rank_zero({nproc, 1, "mlp"}, announced);
    EXPECT_LE(of_mlp, base + 1 + (announced - 1));
    EXPECT_GE(of_mlp, base + 1);
  }
}

TEST_F(Threads, BR012_OneCpuMeansOneThread) {
  int announced = 0;
  const int base = threads_of_rank_zero({1, 1, "cnn", "OMP_NUM_THREADS=1"}, announced);
  const int confined = threads_of_rank_zero({1, 1, "cnn", "-u OMP_NUM_THREADS taskset -c " + first_cpu()}, announced);
  EXPECT_EQ(confined, base);
  EXPECT_EQ(announced, 1);
}

TEST_F(Threads, BR012_NonsenseIsFlaggedOnceAndNoProcessOfOursComplains) {
  for (const std::string value : {"", "0"}) {
    const TemporaryDirectory folder("lockstep-threads");
    for (const Words& words : {Words{"train", "--model", "mlp", "--data", "synthetic:1x9x9:64", "--device", "cpu",
                                     "--nproc", "2", "--epochs", "1", "--run-dir", (folder.path() / "run").string()},
                               Words{"run", "--nproc", "2", "--", "sh", "-c", "echo threads=\"'$OMP_NUM_THREADS'\""}}) {
      Command command(Words{"OMP_NUM_THREADS=" + value, Command::binary()} + words, Command::Terminal::kNone, "env");
      EXPECT_EQ(command.wait(), 0) << command.err();
      const std::string flag = text("warning: OMP_NUM_THREADS='", value, "' is no number of threads");
      const std::string err = command.err();
      EXPECT_THAT(err, AllOf(HasSubstr(flag), Not(HasSubstr("libgomp")), Not(HasSubstr("[store]"))));
      EXPECT_EQ(err.find("OMP_NUM_THREADS"), err.rfind("OMP_NUM_THREADS")) << err;
      if (words[0] == "run") {
        EXPECT_THAT(command.out(), HasSubstr(text("[rank 1] threads='", value, "'")));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::e2e
