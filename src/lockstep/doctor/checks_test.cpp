#include "lockstep/doctor/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

class Checks : public testing::Test {
 protected:
  Checks() {
    machine_.environment = [this](const char* name) -> std::optional<std::string> {
      const auto entry = variables_.find(name);
      return entry == variables_.end() ? std::nullopt : std::optional(entry->second);
    };
    machine_.root = root_.path();
    machine_.run_folder = root_.path() / "runs/deep/inside";
    machine_.python = root_.path() / "python3";
    machine_.run = run_command;
    machine_.probe.torch = "2.11.0";
    machine_.probe.threads = 2;
    machine_.probe.loaded_objects = {"/torch/lib/libtorch_cpu.so", "/torch/lib/libc10.so"};
    std::filesystem::create_directories(root_.path() / "dev/shm");
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  }

  void write(const std::filesystem::path& path, const std::string& content) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << content;
  }

  /// `count` equal cards, all visible, which LibTorch can use.
  void with_gpus(int count, int capability_major = 9, int capability_minor = 0) {
    machine_.gpus = {};
    machine_.gpus.driver_version = "580.65.06";
    machine_.gpus.driver_cuda_version = "13.0";
    machine_.probe.cuda = CudaState::kUsable;
    machine_.probe.cuda_version = "13.0";
    machine_.probe.devices.clear();
    for (int index = 0; index < count; ++index) {
      host::Gpu gpu;
      gpu.index = index;
      gpu.name = "NVIDIA Test";
      gpu.uuid = text("GPU-", index);
      gpu.memory_total_bytes = std::uint64_t{16} << 30;
      gpu.capability_major = capability_major;
      gpu.capability_minor = capability_minor;
      machine_.gpus.gpus.push_back(gpu);
      machine_.probe.devices.push_back({index, "ok"});
    }
    look();
  }
  void look() { machine_.visible = host::visible_devices(machine_.gpus, machine_.environment); }

  /// LibTorch has a CUDA part that cannot be used for `reason`.
  void without_cuda(CudaState state, const char* reason) {
    machine_.probe.cuda = state;
    machine_.probe.cuda_error = reason;
    machine_.probe.devices.clear();
  }

  TemporaryDirectory root_{"lockstep-doctor-test"};
  std::map<std::string, std::string> variables_;
  Machine machine_;
};

TEST_F(Checks, AreNamedAndUniqueAndNoneFailsOnAPlainCpuMachine) {
  const auto results = run_checks(machine_);
  std::set<std::string> names;
  for (const Result& result : results) {
    EXPECT_FALSE(result.name.empty());
    EXPECT_TRUE(names.insert(result.name).second) << result.name;
    EXPECT_NE(result.status, Status::kFail) << result.name << ": " << result.what;
    EXPECT_FALSE(result.what.empty()) << result.name;
    if (result.status == Status::kWarn) {
      EXPECT_FALSE(result.hint.empty()) << result.name;
    }
  }
  EXPECT_GE(results.size(), 20u);
  EXPECT_FALSE(any_failed(results));
}

TEST_F(Checks, OneThatThrowsIsAFailureAndTheOthersAreMade) {
  std::filesystem::remove(root_.path() / "proc/meminfo");
  const auto results = run_checks(machine_);
  const auto memory = std::find_if(results.begin(), results.end(), [](const Result& r) { return r.name == "memory"; });
  EXPECT_EQ(memory->status, Status::kFail);
  EXPECT_THAT(memory->what, HasSubstr("this check could not be made"));
  EXPECT_EQ(results.back().name, "python");
}

TEST_F(Checks, GpusThatAreMissingAreInformationWithoutADriverAndAWarningWithOne) {
  machine_.gpus.why_none = "no NVIDIA driver is loaded and no NVIDIA GPU is on the PCI bus";
  EXPECT_EQ(check_gpus(machine_).status, Status::kInfo);
  EXPECT_EQ(check_gpus(machine_).why, machine_.gpus.why_none);
  machine_.gpus.driver_version = "535.1";
  EXPECT_EQ(check_gpus(machine_).status, Status::kWarn);
}

TEST_F(Checks, GpusAreListed) {
  with_gpus(2);
  EXPECT_THAT(check_gpus(machine_).what, HasSubstr("2 GPU(s): 0: NVIDIA Test (16.0 GiB, compute capability 9.0), 1:"));
  machine_.gpus.problems = {"GPU 2: GPU is lost"};
  EXPECT_EQ(check_gpus(machine_).status, Status::kWarn);
}

TEST_F(Checks, BR030_AnIndexOutsideTheSetIsShown) {
  variables_["CUDA_VISIBLE_DEVICES"] = "2";
  with_gpus(2);
  const Result result = check_visible_devices(machine_);
  EXPECT_EQ(result.status, Status::kWarn);
  EXPECT_THAT(result.what, HasSubstr("0 of 2 GPU(s) visible to CUDA (CUDA_VISIBLE_DEVICES='2')"));
  EXPECT_THAT(result.hint, HasSubstr("0 to 1"));
}

TEST_F(Checks, CardsThatDifferMakeIndicesUnsure) {
  with_gpus(2);
  machine_.gpus.gpus[1].name = "NVIDIA Other";
  look();
  EXPECT_THAT(check_visible_devices(machine_).hint, HasSubstr("PCI_BUS_ID"));
}

TEST_F(Checks, GpuMemoryHeldByOthersIsAWarning) {
  with_gpus(2);
  EXPECT_EQ(check_gpu_memory(machine_).status, Status::kOk);
  machine_.gpus.gpus[1].memory_used_bytes = std::uint64_t{12} << 30;
  EXPECT_EQ(check_gpu_memory(machine_).status, Status::kWarn);
  EXPECT_THAT(check_gpu_memory(machine_).why, HasSubstr("GPU 1"));
}

TEST_F(Checks, ALibTorchThatDoesNotLoadFails) {
  machine_.probe.failure = "libtorch_cpu.so: cannot open shared object file";
  EXPECT_EQ(check_libtorch(machine_).status, Status::kFail);
  EXPECT_EQ(check_libtorch(machine_).why, machine_.probe.failure);
  EXPECT_EQ(check_cuda(machine_).status, Status::kSkip);
}

TEST_F(Checks, BR094_EachStateOfCudaHasItsOwnTextAndFailsOnlyWhereThereAreGpus) {
  struct Case {
    CudaState state;
    const char* error;
    const char* what;
    const char* why;
    const char* hint;
  };
  const Case cases[] = {
      {CudaState::kCpuOnlyLibTorch, "", "built for the CPU only", "beside /torch/lib/libtorch_cpu.so",
       "scripts/setup.sh"},
      {CudaState::kLibraryNotLoaded, "libcudnn.so.9: cannot open", "does not load",
       "not among the 2 libraries in the process: libcudnn.so.9", "-Wl,--no-as-needed -ltorch_cuda"},
      {CudaState::kNoUsableGpu, "no CUDA-capable device", "finds no usable GPU", "no CUDA-capable", "dmesg"},
  };
  for (const Case& c : cases) {
    with_gpus(1);
    without_cuda(c.state, c.error);
    EXPECT_EQ(check_cuda(machine_).status, Status::kFail) << c.what;
    EXPECT_THAT(check_cuda(machine_).what, HasSubstr(c.what));
    EXPECT_THAT(check_cuda(machine_).why, HasSubstr(c.why));
    EXPECT_THAT(check_cuda(machine_).hint, HasSubstr(c.hint));
    with_gpus(0);
    without_cuda(c.state, c.error);
    EXPECT_EQ(check_cuda(machine_).status, Status::kInfo) << c.what;
  }
}

TEST_F(Checks, ADriverThatIsTooOldForLibTorchIsNamed) {
  with_gpus(1);
  machine_.gpus.driver_version = "535.183.01";
  machine_.gpus.driver_cuda_version = "12.2";
  without_cuda(CudaState::kNoUsableGpu, "CUDA driver version is insufficient");
  const Result result = check_cuda(machine_);
  EXPECT_EQ(result.status, Status::kFail);
  EXPECT_THAT(result.why, HasSubstr("LibTorch needs CUDA 13.0, the driver 535.183.01 serves only up to 12.2"));
  // A newer minor version of the same major one works.
  machine_.gpus.driver_cuda_version = "13.1";
  EXPECT_THAT(check_cuda(machine_).why, HasSubstr("insufficient"));
}

TEST_F(Checks, CudaThatSeesFewerThanTheDriverIsAWarning) {
  with_gpus(2);
  EXPECT_EQ(check_cuda(machine_).status, Status::kOk);
  machine_.probe.devices.pop_back();
  EXPECT_EQ(check_cuda(machine_).status, Status::kWarn);
}

TEST_F(Checks, AKernelThatHasNoCodeForTheCardIsExplained) {
  with_gpus(1, 6, 1);
  EXPECT_EQ(check_kernels(machine_).status, Status::kOk);
  machine_.probe.devices[0].kernel = "CUDA error: no kernel image is available for execution on the device";
  const Result result = check_kernels(machine_);
  EXPECT_EQ(result.status, Status::kFail);
  EXPECT_THAT(result.what, HasSubstr("GPU 0 (NVIDIA Test, compute capability 6.1)"));
  EXPECT_THAT(result.why, HasSubstr("no code for this compute capability"));
}

TEST_F(Checks, BR004_Bf16IsNativeEmulatedOrNone) {
  write("proc/cpuinfo", "flags\t\t: fpu avx2 avx512_bf16\n");
  const auto of = [this](int major, int minor) {
    with_gpus(1, major, minor);
    return check_bf16(machine_);
  };
  EXPECT_THAT(of(7, 0).what, HasSubstr("GPU 0 (7.0) emulated"));
  EXPECT_THAT(of(7, 5).what, HasSubstr("GPU 0 (7.5) emulated"));
  EXPECT_THAT(of(7, 5).hint, HasSubstr("fp16"));
  EXPECT_THAT(of(8, 0).what, HasSubstr("GPU 0 (8.0) native"));
  EXPECT_THAT(of(9, 0).what, HasSubstr("GPU 0 (9.0) native"));
  EXPECT_EQ(of(9, 0).hint, "");
  EXPECT_THAT(of(3, 5).what, HasSubstr("GPU 0 (3.5) none"));
  EXPECT_THAT(of(9, 0).what, HasSubstr("CPU native"));
  write("proc/cpuinfo", "flags\t\t: fpu avx2 avx512f\n");
  EXPECT_THAT(of(9, 0).what, HasSubstr("CPU emulated"));
}

TEST_F(Checks, BR026_SharedMemoryShowsSizeFreeNeedAndTheDockerFlag) {
  with_gpus(1);
  EXPECT_EQ(check_shared_memory(machine_).status, Status::kOk);
  with_gpus(8);
  EXPECT_THAT(check_shared_memory(machine_).what, HasSubstr("NCCL on 8 GPUs needs about 305.2 MiB"));
  std::filesystem::remove_all(root_.path() / "dev/shm");
  const Result missing = check_shared_memory(machine_);
  EXPECT_EQ(missing.status, Status::kFail);
  EXPECT_THAT(missing.hint, HasSubstr("docker run --shm-size="));
}

TEST_F(Checks, BR026_LeftOverSegmentsAreListedAndNotRemoved) {
  write("dev/shm/nccl-dead", "x");
  write("dev/shm/nccl-alive", "x");
  write("dev/shm/other", "x");
  write("proc/42/maps", "7f00-7f01 rw-s 00000000 00:19 3   /dev/shm/nccl-alive\n");
  const Result result = check_shared_memory(machine_);
  EXPECT_EQ(result.status, Status::kWarn);
  EXPECT_THAT(result.why, HasSubstr("1 file(s) of jobs that are gone fill it: nccl-dead"));
  EXPECT_TRUE(std::filesystem::exists(root_.path() / "dev/shm/nccl-dead"));
}

TEST_F(Checks, BR075_AFewOpenFilesAreAWarning) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit lowered = before;
  lowered.rlim_cur = 1024;
  setrlimit(RLIMIT_NOFILE, &lowered);
  const Result result = check_open_files(machine_);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(result.status, Status::kWarn);
  EXPECT_THAT(result.what, HasSubstr("1024 files"));
}

TEST_F(Checks, LittleMemoryIsAWarning) {
  EXPECT_EQ(check_memory(machine_).status, Status::kOk);
  write("sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(check_memory(machine_).status, Status::kWarn);
  EXPECT_THAT(check_memory(machine_).what, HasSubstr("memory.max"));
}

TEST_F(Checks, ATightLimitOnProcessesIsAWarning) {
  write("sys/fs/cgroup/pids.max", "100\n");
  EXPECT_EQ(check_processes(machine_).status, Status::kWarn);
  write("sys/fs/cgroup/pids.max", "max\n");
  EXPECT_EQ(check_processes(machine_).status, Status::kOk);
}

TEST_F(Checks, LeftOverRankVariablesAreAWarning) {
  EXPECT_EQ(check_environment(machine_).status, Status::kOk);
  variables_["OMP_NUM_THREADS"] = "1";
  EXPECT_EQ(check_environment(machine_).status, Status::kInfo);
  variables_["RANK"] = "3";
  variables_["WORLD_SIZE"] = "4";
  EXPECT_EQ(check_environment(machine_).status, Status::kWarn);
}

TEST_F(Checks, ARunFolderThatCannotBeMadeFails) {
  EXPECT_EQ(check_disk(machine_).status, Status::kOk);
  machine_.run_folder = "/proc/runs";
  EXPECT_EQ(check_disk(machine_).status, Status::kFail);
}

TEST_F(Checks, FashionMnistIsFoundPackedOrNot) {
  EXPECT_EQ(check_fashion_mnist(machine_).status, Status::kInfo);
  const std::filesystem::path folder = "usr/share/datasets/fashion-mnist";
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte.gz"}) {
    write(folder / name, "x");
  }
  EXPECT_EQ(check_fashion_mnist(machine_).why, "missing: t10k-labels-idx1-ubyte");
  write(folder / "t10k-labels-idx1-ubyte", "x");
  EXPECT_EQ(check_fashion_mnist(machine_).status, Status::kOk);
}

TEST_F(Checks, AHalfMadePythonIsAWarning) {
  EXPECT_EQ(check_python(machine_).status, Status::kSkip);
  write("python3", "#!/bin/sh\necho 'no module torch' >&2; exit 1\n");
  std::filesystem::permissions(machine_.python, std::filesystem::perms::owner_all);
  EXPECT_EQ(check_python(machine_).status, Status::kWarn);
  EXPECT_THAT(check_python(machine_).why, HasSubstr("no module torch"));
}

TEST_F(Checks, RequiredGpusMustBeUsable) {
  EXPECT_EQ(check_required_gpus(machine_, 1).status, Status::kFail);
  with_gpus(2);
  EXPECT_EQ(check_required_gpus(machine_, 2).status, Status::kOk);
  EXPECT_EQ(check_required_gpus(machine_, 3).status, Status::kFail);
  machine_.probe.devices[0].kernel = "invalid device function";
  EXPECT_EQ(check_required_gpus(machine_, 2).status, Status::kFail);
}

TEST(Report, IsJsonWithASchemaAndTextWithTotals) {
  const std::vector<Result> results{{"gpus", Status::kWarn, "a", "b", "c"}, {"cpu", Status::kOk, "d", "", ""}};
  const nlohmann::json expected = {
      {"schema", "lockstep.doctor/1"},
      {"checks",
       {{{"name", "gpus"}, {"status", "warn"}, {"what", "a"}, {"why", "b"}, {"hint", "c"}},
        {{"name", "cpu"}, {"status", "ok"}, {"what", "d"}, {"why", ""}, {"hint", ""}}}},
  };
  EXPECT_EQ(nlohmann::json(to_json(results)), expected);
  EXPECT_EQ(to_json(results).begin().key(), "schema");
  EXPECT_EQ(to_text(results),
            "warn  gpus  a\n            why: b\n            hint: c\nok    cpu   d\n\n1 ok, 0 info, 0 skip, 1 warn, 0 "
            "fail\n");
}

}  // namespace
}  // namespace lockstep::doctor
