#include "lockstep/doctor/run_command.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/host/process.h"

namespace lockstep::doctor {
namespace {

using namespace std::chrono_literals;

TEST(RunCommand, KeepsBothStreamsAndTheExitCode) {
  const CommandOutput output = run_command({"sh", "-c", "echo out; echo err >&2; exit 3"}, 10s);
  EXPECT_TRUE(output.started);
  EXPECT_FALSE(output.ok());
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_EQ(output.out, "out\n");
  EXPECT_EQ(output.err, "err\n");
}

TEST(RunCommand, TellsASignal) {
  const CommandOutput output = run_command({"sh", "-c", "kill -SEGV $$"}, 10s);
  EXPECT_EQ(output.signal, SIGSEGV);
  EXPECT_FALSE(output.ok());
}

TEST(RunCommand, TellsAMissingProgram) {
  EXPECT_FALSE(run_command({"lockstep-no-such-program"}, 10s).started);
}

TEST(RunCommand, KillsWhatTakesTooLongWithAllItStarted) {
  const auto start = std::chrono::steady_clock::now();
  const CommandOutput output = run_command({"sh", "-c", "sleep 600 & echo $!; sleep 600"}, 300ms);
  EXPECT_TRUE(output.timed_out);
  EXPECT_FALSE(output.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  long long child = 0;
  ASSERT_TRUE(parse_number(trim(output.out), child));
  // Its parent is gone, so init reaps it; until then it is a zombie.
  const auto ended = [&] {
    const auto process = host::read_process(static_cast<int>(child));
    return !process || process->is_zombie();
  };
  for (int i = 0; i < 500 && !ended(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(ended());
}

TEST(RunCommand, DoesNotStallOnMuchOutput) {
  const CommandOutput output = run_command({"sh", "-c", "yes | head -c 5000000"}, 20s);
  EXPECT_TRUE(output.ok());
  EXPECT_GE(output.out.size(), 1u << 20);
}

TEST(RunCommand, HasAnEmptyStandardInput) {
  EXPECT_TRUE(run_command({"cat"}, 10s).ok());
}

}  // namespace
}  // namespace lockstep::doctor
