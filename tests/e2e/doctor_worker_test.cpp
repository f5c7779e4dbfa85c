// The doctor around the real lockstep-worker, which runs on copies (links, in truth) of this build's LibTorch with
// parts of it missing or damaged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "e2e/command.h"
#include "lockstep/base/file.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DoctorWithTheWorker : public testing::Test {
 protected:
  // LibTorch's libraries look for those of the nvidia-* wheels in $ORIGIN/../../nvidia, so the folders keep their
  // names.
  DoctorWithTheWorker() {
    fs::create_directories(lib());
    for (const auto& entry : fs::directory_iterator(LOCKSTEP_LIBTORCH_LIB_DIR)) {
      fs::create_symlink(entry.path(), lib() / entry.path().filename());
    }
    const fs::path wheels = fs::path(LOCKSTEP_LIBTORCH_LIB_DIR) / "../../nvidia";
    if (fs::exists(wheels)) fs::create_symlink(fs::canonical(wheels), folder_.path() / "nvidia");
  }

  fs::path lib() const { return folder_.path() / "torch/lib"; }

  /// What the doctor finds about CUDA on a machine whose driver shows a GPU.
  nlohmann::json check_cuda(const char* visible_devices) const {
    const auto result = run_command({built("bin/lockstep"), "doctor", "--json"},
                                    {.environment = {{"LD_LIBRARY_PATH", lib().string()},
                                                     {"LOCKSTEP_NVML_LIBRARY", LOCKSTEP_FAKE_NVML},
                                                     {"FAKE_NVML_GPUS", "NVIDIA T4/7.5/GPU-a/15360/0"},
                                                     {"CUDA_VISIBLE_DEVICES", visible_devices},
                                                     {"LOCKSTEP_WORKER", std::nullopt}},
                                     .folder = folder_.path()});
    const auto report = nlohmann::json::parse(result.out);
    for (const auto& entry : report.at("checks")) {
      if (entry.at("name") == "cuda") return entry;
    }
    ADD_FAILURE() << result.out << result.err;
    return {{"status", ""}, {"what", ""}, {"why", ""}, {"hint", ""}};
  }

  TemporaryDirectory folder_{"lockstep-doctor-worker"};
};

TEST_F(DoctorWithTheWorker, BR094_NamesACpuOnlyLibTorch) {
  fs::remove(lib() / "libtorch_cuda.so");
  const auto cuda = check_cuda("0");
  EXPECT_EQ(cuda.at("status"), "fail");
  EXPECT_EQ(cuda.at("what"), "this LibTorch is built for the CPU only");
  EXPECT_THAT(cuda.at("why"), HasSubstr("no libtorch_cuda.so beside " + (lib() / "libtorch_cpu.so").string()));
  EXPECT_THAT(cuda.at("hint"), HasSubstr("LIBTORCH"));
}

TEST_F(DoctorWithTheWorker, BR094_NamesACudaLibraryThatDoesNotLoad) {
  fs::remove(lib() / "libtorch_cuda.so");
  std::ofstream(lib() / "libtorch_cuda.so") << "half a library";
  const auto cuda = check_cuda("0");
  EXPECT_EQ(cuda.at("status"), "fail");
  EXPECT_THAT(cuda.at("what"), HasSubstr("does not load"));
  EXPECT_THAT(cuda.at("why"), HasSubstr((lib() / "libtorch_cuda.so").string() + " is not among the "));
  EXPECT_THAT(cuda.at("why"), HasSubstr("file too short"));
  EXPECT_THAT(cuda.at("hint"), HasSubstr("-Wl,--no-as-needed -ltorch_cuda"));
}

TEST_F(DoctorWithTheWorker, BR094_NamesALoadedCudaLibraryWithoutAUsableGpu) {
  const auto cuda = check_cuda("");
  EXPECT_EQ(cuda.at("status"), "info");
  EXPECT_EQ(cuda.at("what"), LOCKSTEP_LIBTORCH_HAS_CUDA ? "LibTorch's CUDA is loaded and finds no usable GPU"
                                                        : "this LibTorch is built for the CPU only");
}

}  // namespace
}  // namespace lockstep::e2e
