// BR-057: how many processes on which devices, on a machine whose GPUs are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "e2e/command.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class Devices : public testing::Test {
 protected:
  // Four cards in the machine. The worker leaves a file for each process that was started.
  CommandResult train(const std::string& visible, std::vector<std::string> words) const {
    const fs::path worker = folder_.path() / "worker";
    std::ofstream(worker) << "#!/bin/sh\ntouch " << folder_.path().string() << "/started.$RANK\nexec "
                          << built("tests/e2e/scripted_worker") << " \"$@\"\n";
    fs::permissions(worker, fs::perms::owner_all);
    words.insert(words.begin(), {built("bin/lockstep"), "train", "--model", "mlp", "--data", "synthetic:1x9x9:64",
                                 "--epochs", "1", "--json", "--run-dir", (folder_.path() / "run").string()});
    std::string cards;
    for (const auto* uuid : {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}) {
      cards += std::string(cards.empty() ? "" : ";") + "NVIDIA T4/7.5/" + uuid + "/15360/0";
    }
    return run_command(words, {.environment = {{"LOCKSTEP_NVML_LIBRARY", LOCKSTEP_FAKE_NVML},
                                               {"FAKE_NVML_GPUS", cards},
                                               {"CUDA_VISIBLE_DEVICES", visible},
                                               {"LOCKSTEP_WORKER", worker.string()}},
                               .folder = folder_.path()});
  }

  bool started(int rank) const { return fs::exists(folder_.path() / ("started." + std::to_string(rank))); }

  TemporaryDirectory folder_{"lockstep-devices-test"};
};

TEST_F(Devices, BR057_MoreProcessesThanVisibleGpusAreRefusedBeforeAnyStarts) {
  const auto result = train("1,2", {"--device", "cuda", "--nproc", "4"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("--nproc 4 with --device cuda"), HasSubstr("only 2 GPUs are visible"),
                                HasSubstr("CUDA_VISIBLE_DEVICES=1,2, of 4 in the machine")));
  EXPECT_EQ(result.out, "");
  EXPECT_FALSE(started(0));
  EXPECT_FALSE(fs::exists(folder_.path() / "run"));
}

TEST_F(Devices, BR057_ANumberOfProcessesThatWasAskedForIsNeverChanged) {
  for (const auto* device : {"cpu", "auto"}) {
    const auto result = train("1,2", {"--device", device, "--nproc", "4", "--overwrite"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto document = nlohmann::json::parse(result.out);
    EXPECT_EQ(document["world_size"], 4);
    EXPECT_EQ(document["device"], "cpu");
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(started(rank)) << device << ", rank " << rank;
      fs::remove(folder_.path() / ("started." + std::to_string(rank)));
    }
    EXPECT_FALSE(started(4));
  }
}

}  // namespace
}  // namespace lockstep::e2e
