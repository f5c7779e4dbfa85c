// BR-087 with a real training run: what a terminal that goes away does to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/train_command.h"

namespace lockstep::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Words train(const fs::path& run_dir, int max_steps) {
  return endless_training(2, run_dir) + Words{"--max-steps", text(max_steps)};
}

std::string events(const fs::path& run_dir) {
  const auto file = run_dir / "events.jsonl";
  return fs::exists(file) ? read_file(file) : std::string();
}

TEST(TrainTerminal, BR087i_UnderNohupTrainingOutlivesItsTerminalAndFinishes) {
  TemporaryDirectory folder("lockstep-e2e");
  const fs::path run_dir = folder.path() / "run";
  constexpr int kSteps = 4000;
  Command command({"-c", text("nohup ", Command::binary(), " ", join(train(run_dir, kSteps), " "), " > ",
                              folder.path().string(), "/log 2>&1; true")},
                  Command::Terminal::kOwn, "/bin/sh");
  ASSERT_TRUE(is_training(run_dir));
  command.close_terminal();
  ASSERT_EQ(events(run_dir).find("run_end"), std::string::npos) << "it was done before the terminal went away";
  EXPECT_TRUE(Command::eventually([&] { return events(run_dir).find("run_end") != std::string::npos; }, 60000));
  EXPECT_THAT(events(run_dir), AllOf(HasSubstr("\"completed\""), HasSubstr(text("\"steps\":", kSteps))));
  EXPECT_TRUE(Command::eventually([&] { return command.living().empty(); }));
  EXPECT_THAT(read_file(folder.path() / "log"), HasSubstr(text("completed at step ", kSteps)));
}

TEST(TrainTerminal, BR087ii_WithoutNohupTrainingSavesStopsAndSaysWhy) {
  TemporaryDirectory folder("lockstep-e2e");
  const fs::path run_dir = folder.path() / "run";
  Command command(train(run_dir, 100000000), Command::Terminal::kOwn);
  ASSERT_TRUE(is_training(run_dir));
  command.close_terminal();
  EXPECT_EQ(command.wait(), 129) << command.err();
  EXPECT_TRUE(command.living().empty());
  EXPECT_THAT(command.err(), HasSubstr("the terminal went away"));
  EXPECT_THAT(events(run_dir), AllOf(HasSubstr("run_end"), HasSubstr("\"stopped\"")));
  ASSERT_TRUE(fs::exists(run_dir / "checkpoints"));
  const auto saved = fs::directory_iterator(run_dir / "checkpoints")->path();
  EXPECT_TRUE(fs::exists(saved / "MANIFEST.json")) << saved;
}

}  // namespace
}  // namespace lockstep::e2e
