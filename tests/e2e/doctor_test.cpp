// `lockstep doctor` as users run it, on machines that are made up: a stand-in for the driver's library and for the
// worker, both used through the same doors as the real ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class Doctor : public testing::Test {
 protected:
  Doctor() {
    worker(R"(echo '{"torch":"2.11.0","threads":2,"cuda_available":false,"cuda_library":"/t/libtorch_cuda.so",)"
           R"("loaded_objects":["/t/libtorch_cuda.so"],"cuda_error":"CUDA finds no usable GPU","devices":[]}')");
    variables_["LOCKSTEP_NVML_LIBRARY"] = "/no/such/library.so";
  }

  void worker(const std::string& script) {
    const auto path = folder_.path() / "worker";
    std::ofstream(path) << "#!/bin/sh\n" << script << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    variables_["LOCKSTEP_WORKER"] = path.string();
  }

  void two_gpus() {
    variables_["LOCKSTEP_NVML_LIBRARY"] = LOCKSTEP_FAKE_NVML;
    variables_["FAKE_NVML_GPUS"] = "NVIDIA T4/7.5/GPU-a/15360/0;NVIDIA T4/7.5/GPU-b/15360/0";
    worker(R"(echo '{"torch":"2.11.0","threads":2,"cuda_version":"13.0","cuda_available":true,"cuda_error":"",)"
           R"("cuda_library":"/t/libtorch_cuda.so","loaded_objects":["/t/libtorch_cuda.so"],)"
           R"("devices":[{"index":0,"kernel":"ok"},{"index":1,"kernel":"ok"}]}')");
  }

  /// Runs the command; keeps exit code and standard output.
  void run(const std::string& flags) {
    std::string line = text("cd '", folder_.path().string(), "' && env -u CUDA_VISIBLE_DEVICES");
    for (const auto& [name, value] : variables_) line += text(" '", name, '=', value, '\'');
    line += text(" '", std::getenv("LOCKSTEP_BUILD_DIR"), "/bin/lockstep' doctor ", flags, " 2>&1");
    FILE* pipe = popen(line.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    out_.clear();
    std::array<char, 4096> buffer;
    while (const auto count = std::fread(buffer.data(), 1, buffer.size(), pipe)) out_.append(buffer.data(), count);
    const int status = pclose(pipe);
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  nlohmann::json check(const std::string& name) {
    const auto document = nlohmann::json::parse(out_);
    for (const auto& entry : document.at("checks")) {
      if (entry.at("name") == name) return entry;
    }
    ADD_FAILURE() << "no check " << name << " in " << out_;
    return {{"status", ""}, {"what", ""}, {"why", ""}, {"hint", ""}};
  }

  TemporaryDirectory folder_{"lockstep-doctor-e2e"};
  std::map<std::string, std::string> variables_;
  std::string out_;
  int exit_code_ = -1;
};

TEST_F(Doctor, APlainCpuMachineIsReady) {
  run("--json");
  EXPECT_EQ(exit_code_, 0) << out_;
  EXPECT_EQ(nlohmann::json::parse(out_).at("schema"), "lockstep.doctor/1");
  EXPECT_EQ(check("libtorch").at("status"), "ok");
  EXPECT_EQ(check("cuda").at("status"), "info");
  run("");
  EXPECT_EQ(exit_code_, 0) << out_;
  EXPECT_THAT(out_, HasSubstr("LibTorch 2.11.0"));
  EXPECT_THAT(out_, HasSubstr("0 fail\n"));
}

TEST_F(Doctor, TwoGpusAreReadyAndMeetTheRequirement) {
  two_gpus();
  run("--json --require gpus=2");
  EXPECT_EQ(exit_code_, 0) << out_;
  EXPECT_THAT(check("gpus").at("what"), HasSubstr("2 GPU(s): 0: NVIDIA T4"));
  EXPECT_EQ(check("kernels").at("status"), "ok");
  EXPECT_EQ(check("require").at("status"), "ok");
}

TEST_F(Doctor, AnUnmetRequirementExitsWithOne) {
  two_gpus();
  run("--json --require gpus=3");
  EXPECT_EQ(exit_code_, 1) << out_;
  EXPECT_EQ(check("require").at("status"), "fail");
}

TEST_F(Doctor, BR094_ACpuOnlyLibTorchOnAMachineWithGpusExitsWithOne) {
  two_gpus();
  worker(R"(echo '{"torch":"2.11.0","threads":2,"cuda_available":false,"cuda_library":"","loaded_objects":[],)"
         R"("cuda_error":"this LibTorch was built for the CPU only","devices":[]}')");
  run("--json");
  EXPECT_EQ(exit_code_, 1) << out_;
  EXPECT_THAT(check("cuda").at("what"), HasSubstr("built for the CPU only"));
}

TEST_F(Doctor, RunsWhereLibTorchDoesNotLoad) {
  worker("echo 'error while loading shared libraries: libtorch_cpu.so: cannot open' >&2; exit 127");
  run("--json");
  EXPECT_EQ(exit_code_, 1) << out_;
  EXPECT_THAT(check("libtorch").at("why"), HasSubstr("libtorch_cpu.so"));
  variables_["LOCKSTEP_WORKER"] = "/no/such/worker";
  run("--json");
  EXPECT_EQ(exit_code_, 1) << out_;
  EXPECT_THAT(check("libtorch").at("why"), HasSubstr("/no/such/worker"));
}

TEST_F(Doctor, RefusesWrongUse) {
  for (const char* flags : {"--require gpus=0", "--require 2", "--require gpus=2x", "--jsn", "extra"}) {
    run(flags);
    EXPECT_EQ(exit_code_, 2) << flags << ": " << out_;
  }
}

}  // namespace
}  // namespace lockstep
