#include "lockstep/host/memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::host {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;

TEST(ProcessMemory, PeakStaysAfterMemoryIsGivenBack) {
  const auto before = process_memory();
  ASSERT_TRUE(before);
  {
    // Mapped, not allocated: an allocator, a sanitizer's above all, may keep freed memory.
    const UniqueFd file = make_memory_file("lockstep-memory-test", 64 * kMiB);
    const MappedMemory block = MappedMemory::shared(file.get(), 64 * kMiB);
    std::memset(block.data(), 1, block.size_bytes());
    const auto during = process_memory(getpid());
    EXPECT_GE(during->resident_bytes, before->resident_bytes + 60 * kMiB);
  }
  const auto after = process_memory();
  EXPECT_GE(after->peak_resident_bytes, before->resident_bytes + 60 * kMiB);
  EXPECT_LT(after->resident_bytes, after->peak_resident_bytes);
}

TEST(ProcessMemory, IsNothingForAProcessThatIsGone) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_GT(child, 0);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(process_memory(child)) << "a zombie";
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(process_memory(child)) << "gone";
}

class MemoryLimitOf : public testing::Test {
 protected:
  MemoryLimitOf() : root_("lockstep-memory-test") {
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  100 kB\nMemAvailable:    8388608 kB\n");
  }
  void write(const std::filesystem::path& path, const char* content) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << content;
  }
  TemporaryDirectory root_;
};

TEST_F(MemoryLimitOf, TheMachineWithoutCgroups) {
  const MemoryLimit limit = memory_limit(root_.path());
  EXPECT_EQ(limit.limit_bytes, 16384 * kMiB);
  EXPECT_EQ(limit.available_bytes, 8192 * kMiB);
  EXPECT_EQ(limit.source, "the machine");
}

TEST_F(MemoryLimitOf, CgroupV2TakesTheSmallestLevel) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/memory.max", "2147483648\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  const MemoryLimit limit = memory_limit(root_.path());
  EXPECT_EQ(limit.limit_bytes, 2048 * kMiB);
  EXPECT_EQ(limit.source, (root_.path() / "sys/fs/cgroup/user/memory.max").string());
}

TEST_F(MemoryLimitOf, CgroupV1InsideAContainer) {
  write("proc/self/cgroup", "5:cpu,memory:/docker/0123\n0::/\n");  // a folder that only the host sees
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(memory_limit(root_.path()).limit_bytes, 1024 * kMiB);
}

TEST_F(MemoryLimitOf, UnlimitedGroupsDoNotCount) {
  write("proc/self/cgroup", "5:memory:/\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(memory_limit(root_.path()).source, "the machine");
}

TEST_F(MemoryLimitOf, ARootWithoutMeminfoIsAnError) {
  std::filesystem::remove(root_.path() / "proc/meminfo");
  EXPECT_THROW(memory_limit(root_.path()), DataError);
}

TEST(MemoryLimit, OfThisMachineIsPlausible) {
  const MemoryLimit limit = memory_limit();
  EXPECT_GT(limit.limit_bytes, 64 * kMiB);
  EXPECT_GT(limit.available_bytes, 0u);
}

}  // namespace
}  // namespace lockstep::host
