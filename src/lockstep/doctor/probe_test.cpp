#include "lockstep/doctor/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

/// A stand-in for lockstep-worker, run for real.
class WorkerProbe : public testing::Test {
 protected:
  Probe probe_with(const char* script, std::chrono::milliseconds timeout = 20s) {
    const auto path = folder_.path() / "lockstep-worker";
    std::ofstream(path) << "#!/bin/sh\n" << script << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return run_probe(path, run_command, timeout);
  }
  TemporaryDirectory folder_{"lockstep-probe-test"};
};

TEST_F(WorkerProbe, ReadsTheAnswer) {
  const Probe probe = probe_with(
      R"([ "$1" = probe ] && echo '{"torch":"2.11.0","threads":2,"cpu_capability":"AVX2",)"
      R"("cuda_library":"/t/libtorch_cuda.so","loaded_objects":["/t/libtorch_cpu.so","/t/libtorch_cuda.so"],)"
      R"("cuda_version":"CUDA Runtime 13.0","cuda_available":true,"cuda_error":"",)"
      R"("devices":[{"index":0,"kernel":"ok"},{"index":1,"kernel":"no kernel image is available"}],"new":1}')");
  ASSERT_TRUE(probe.answered()) << probe.failure;
  EXPECT_EQ(probe.torch, "2.11.0");
  EXPECT_EQ(probe.threads, 2);
  EXPECT_EQ(probe.cuda_version, "13.0");
  EXPECT_EQ(probe.cuda, CudaState::kUsable);
  ASSERT_EQ(probe.devices.size(), 2u);
  EXPECT_EQ(probe.devices[1].kernel, "no kernel image is available");
}

TEST_F(WorkerProbe, BR094_TellsThreeStatesOfCudaApartByTheLoadedObjects) {
  const auto answer = [](const char* library, const char* loaded) {
    return parse_probe(text(R"({"torch":"2.11.0","cuda_available":false,"cuda_error":"","cuda_library":")", library,
                            R"(","loaded_objects":["/t/libtorch_cpu.so")", loaded, "]}"));
  };
  EXPECT_EQ(answer("", "").cuda, CudaState::kCpuOnlyLibTorch);
  EXPECT_EQ(answer("/t/libtorch_cuda.so", R"(,"/t/libtorch_cuda.so.old")").cuda, CudaState::kLibraryNotLoaded);
  const Probe probe = answer("/t/libtorch_cuda.so", R"(,"/t/libtorch_cuda.so","/n/libcudart.so.13")");
  EXPECT_EQ(probe.cuda, CudaState::kNoUsableGpu);
  EXPECT_EQ(probe.loaded("libtorch_cpu.so"), "/t/libtorch_cpu.so");
  EXPECT_EQ(probe.cuda_version, "13");
}

TEST_F(WorkerProbe, ShowsTheLoadersMessage) {
  const Probe probe = probe_with(
      "echo 'lockstep-worker: error while loading shared libraries: libtorch_cpu.so: cannot open shared object file: "
      "No such file or directory' >&2; exit 127");
  EXPECT_FALSE(probe.answered());
  EXPECT_THAT(probe.failure, HasSubstr("libtorch_cpu.so: cannot open shared object file"));
  EXPECT_THAT(probe.hint, HasSubstr("LIBTORCH"));
}

TEST_F(WorkerProbe, SurvivesACrashAHangAndNonsense) {
  EXPECT_THAT(probe_with("kill -ILL $$").failure, HasSubstr("killed by signal 4"));
  EXPECT_THAT(probe_with("echo loading >&2; sleep 600", 300ms).failure, HasSubstr("no answer within 300 ms: loading"));
  EXPECT_THAT(probe_with("echo hello").failure, HasSubstr("its answer is not understood"));
  EXPECT_THAT(probe_with("echo '{\"torch\":7}'").failure, HasSubstr("its answer is not understood"));
  EXPECT_THAT(probe_with("exit 2").failure, HasSubstr("it wrote nothing"));
}

TEST_F(WorkerProbe, TellsAMissingAndAnUnusableWorker) {
  EXPECT_THAT(run_probe(folder_.path() / "nothing", run_command).failure, HasSubstr("does not exist"));
  std::ofstream(folder_.path() / "plain") << "text";
  EXPECT_THAT(run_probe(folder_.path() / "plain", run_command).failure, HasSubstr("cannot be executed"));
}

}  // namespace
}  // namespace lockstep::doctor
