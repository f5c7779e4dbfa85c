#include "lockstep/host/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::host {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kTwoCards = "NVIDIA H200/9.0/GPU-aaaa1111/143771/512;NVIDIA H200/9.0/GPU-aaaa2222/143771/0";

EnvironmentReader environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto entry = variables.find(name);
    return entry == variables.end() ? std::nullopt : std::optional(entry->second);
  };
}

class Gpus : public testing::Test {
 protected:
  Gpus() : folder_("lockstep-gpus-test") {
    sources_.nvml = LOCKSTEP_FAKE_NVML;
    sources_.driver_file = folder_.path() / "version";
    sources_.device_folder = folder_.path() / "dev";
    sources_.pci_folder = folder_.path() / "pci";
    set("FAKE_NVML_GPUS", kTwoCards);
  }
  ~Gpus() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void set(const char* name, const char* value) {
    setenv(name, value, 1);
    set_.emplace_back(name);
  }
  void write(const std::filesystem::path& path, const char* content) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    std::ofstream(folder_.path() / path) << content;
  }
  VisibleDevices visible(std::map<std::string, std::string> variables) {
    return visible_devices(find_gpus(sources_), environment_of(std::move(variables)));
  }

  TemporaryDirectory folder_;
  GpuSources sources_;

 private:
  std::vector<std::string> set_;
};

TEST_F(Gpus, AreReadThroughTheLoadedLibrary) {
  const GpuInventory inventory = find_gpus(sources_);
  ASSERT_EQ(inventory.gpus.size(), 2u) << inventory.why_none;
  EXPECT_EQ(inventory.why_none, "");
  EXPECT_EQ(inventory.driver_version, "580.65.06");
  EXPECT_EQ(inventory.driver_cuda_version, "13.0");
  const Gpu& gpu = inventory.gpus[0];
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-aaaa1111");
  EXPECT_EQ(gpu.capability(), "9.0");
  EXPECT_EQ(gpu.memory_total_bytes, 143771ull << 20);
  EXPECT_EQ(gpu.memory_used_bytes, 512ull << 20);
  EXPECT_EQ(inventory.gpus[1].index, 1);
}

TEST_F(Gpus, OneLostCardDoesNotHideTheOthers) {
  set("FAKE_NVML_GPUS", "!15;NVIDIA T4/7.5/GPU-bbbb/15360/0");
  const GpuInventory inventory = find_gpus(sources_);
  ASSERT_EQ(inventory.gpus.size(), 1u);
  EXPECT_EQ(inventory.gpus[0].index, 1);
  EXPECT_THAT(inventory.problems, ElementsAre("GPU 0: GPU is lost"));
}

TEST_F(Gpus, MissingBecauseThereIsNoDriver) {
  sources_.nvml = "libnvidia-ml-that-does-not-exist.so.1";
  const GpuInventory inventory = find_gpus(sources_);
  EXPECT_THAT(inventory.gpus, IsEmpty());
  EXPECT_THAT(inventory.why_none, HasSubstr("no NVIDIA driver is loaded and no NVIDIA GPU is on the PCI bus"));
  EXPECT_EQ(inventory.driver_version, "");
}

TEST_F(Gpus, MissingBecauseTheCardHasNoDriver) {
  sources_.nvml = "libnvidia-ml-that-does-not-exist.so.1";
  write("pci/0000:01:00.0/vendor", "0x10de\n");
  write("pci/0000:01:00.0/class", "0x030200\n");
  write("pci/0000:01:00.1/vendor", "0x10de\n");
  write("pci/0000:01:00.1/class", "0x040300\n");  // the card's sound device is no GPU
  const GpuInventory inventory = find_gpus(sources_);
  EXPECT_THAT(inventory.why_none, HasSubstr("1 NVIDIA GPU(s) are on the PCI bus, but no driver is loaded"));
  EXPECT_THAT(inventory.hint, HasSubstr("install NVIDIA's driver"));
}

TEST_F(Gpus, MissingBecauseTheContainerLacksTheLibrary) {
  sources_.nvml = "libnvidia-ml-that-does-not-exist.so.1";
  sources_.in_container = true;
  write("version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version:  gcc 12.2\n");
  const GpuInventory inventory = find_gpus(sources_);
  EXPECT_EQ(inventory.driver_version, "580.65.06");
  EXPECT_THAT(inventory.why_none, HasSubstr("driver 580.65.06 is loaded, but its library cannot be used"));
  EXPECT_THAT(inventory.hint, HasSubstr("NVIDIA_DRIVER_CAPABILITIES"));
}

TEST_F(Gpus, MissingBecauseTheLibraryIsAnother) {
  sources_.nvml = "libc.so.6";
  write("version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n");
  EXPECT_THAT(find_gpus(sources_).why_none, HasSubstr("it has no nvmlInit_v2"));
}

TEST_F(Gpus, MissingBecauseTheDriverWasUpdatedWhileRunning) {
  set("FAKE_NVML_INIT", "18");
  write("version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n");
  const GpuInventory inventory = find_gpus(sources_);
  EXPECT_THAT(inventory.why_none, HasSubstr("does not fit the loaded kernel module 535.183.01"));
  EXPECT_THAT(inventory.hint, HasSubstr("reboot"));
}

TEST_F(Gpus, MissingBecauseOfPermissions) {
  set("FAKE_NVML_INIT", "4");
  EXPECT_THAT(find_gpus(sources_).why_none, HasSubstr("may not open /dev/nvidia*"));
}

TEST_F(Gpus, MissingBecauseTheDeviceNodesAre) {
  set("FAKE_NVML_INIT", "9");
  EXPECT_THAT(find_gpus(sources_).why_none, HasSubstr("there is no " + (folder_.path() / "dev/nvidiactl").string()));
}

TEST_F(Gpus, MissingBecauseTheDriverShowsNone) {
  set("FAKE_NVML_GPUS", "");
  EXPECT_THAT(find_gpus(sources_).why_none, HasSubstr("is loaded but shows no GPU"));
}

TEST_F(Gpus, VisibleWithoutAVariableAreAll) {
  const VisibleDevices all = visible({});
  EXPECT_FALSE(all.is_limited);
  EXPECT_THAT(all.gpus, ElementsAre(0, 1));
}

TEST_F(Gpus, VisibleByIndexAndByBeginningOfUuid) {
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "1, 0"}}).gpus, ElementsAre(1, 0));
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "GPU-aaaa2"}}).gpus, ElementsAre(1));
}

TEST_F(Gpus, BR030_AnIndexOutsideTheSetEndsTheList) {
  const VisibleDevices one = visible({{"CUDA_VISIBLE_DEVICES", "0,7,1"}});
  EXPECT_THAT(one.gpus, ElementsAre(0));
  EXPECT_THAT(one.problem, HasSubstr("'7' names none of the 2 GPU(s)"));
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "2"}}).gpus, IsEmpty());
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "-1"}}).gpus, IsEmpty());
}

TEST_F(Gpus, VisibleNoneWhenEmptyRepeatedOrAmbiguous) {
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", ""}}).problem, HasSubstr("hides every GPU"));
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "1,1"}}).gpus, IsEmpty());
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "GPU-aaaa"}}).problem, HasSubstr("names none"));
}

TEST_F(Gpus, IndicesAreUnsureOnlyWhereCardsDiffer) {
  EXPECT_TRUE(visible({}).order_is_sure);
  set("FAKE_NVML_GPUS", "NVIDIA T4/7.5/GPU-b/15360/0;NVIDIA H200/9.0/GPU-a/143771/0");
  EXPECT_FALSE(visible({}).order_is_sure);
  EXPECT_TRUE(visible({{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}).order_is_sure);
}

TEST(Bf16, BR004_NativeEmulatedOrNone) {
  EXPECT_EQ(bf16_support(3), Bf16Support::kNone);
  EXPECT_EQ(bf16_support(7), Bf16Support::kEmulated);  // V100 7.0, T4 7.5
  EXPECT_EQ(bf16_support(8), Bf16Support::kNative);
  EXPECT_EQ(bf16_support(9), Bf16Support::kNative);
}

}  // namespace
}  // namespace lockstep::host
