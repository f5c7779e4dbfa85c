#include "lockstep/host/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>

#include "lockstep/base/file.h"

namespace lockstep::host {
namespace {

namespace fs = std::filesystem;

class Cgroup : public ::testing::Test {
 protected:
  void write(const fs::path& relative, const std::string& content) {
    fs::create_directories((folder_.path() / relative).parent_path());
    std::ofstream(folder_.path() / relative) << content;
  }
  CgroupFiles files() const { return {folder_.path() / "membership", folder_.path() / "mount"}; }

 private:
  TemporaryDirectory folder_{"lockstep-cpus"};
};

TEST_F(Cgroup, BR012_Version2QuotaOfTheOwnGroup) {
  write("membership", "0::/user.slice/job\n");
  write("mount/user.slice/job/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(files()).value(), 1.5);
}

TEST_F(Cgroup, BR012_TheTightestAncestorWins) {
  write("membership", "0::/user.slice/job\n");
  write("mount/user.slice/job/cpu.max", "max 100000\n");
  write("mount/user.slice/cpu.max", "300000 100000\n");
  write("mount/cpu.max", "600000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(files()).value(), 3);
}

TEST_F(Cgroup, BR012_Version1QuotaUnderEitherMountName) {
  write("membership", "12:memory:/x\n4:cpu,cpuacct:/docker/abc\n");
  write("mount/cpu/docker/abc/cpu.cfs_quota_us", "50000\n");
  write("mount/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(files()).value(), 0.5);
  EXPECT_EQ(usable_cpus(files()), 1) << "less than one CPU still runs one thread";
}

TEST_F(Cgroup, BR012_APathOfTheHostFallsBackToTheMount) {
  write("membership", "3:cpu:/docker/not-visible-inside\n");
  write("mount/cpu/cpu.cfs_quota_us", "200000\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(files()).value(), 2);
}

TEST_F(Cgroup, NoLimitAndNonsenseAreNoQuota) {
  EXPECT_FALSE(cpu_quota(files())) << "no files at all";
  write("membership", "0::/\nnonsense\n3:cpu:/\n");
  write("mount/cpu.max", "max 100000\n");
  write("mount/cpu/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cpu_quota(files()));
  write("mount/cpu.max", "100000\n");
  EXPECT_FALSE(cpu_quota(files()));
  EXPECT_EQ(usable_cpus(files()), affinity_cpus());
}

TEST(Cpus, BR012_AffinityMaskCounts) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  const int counted = usable_cpus();
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(counted, 1);
  EXPECT_EQ(affinity_cpus(), CPU_COUNT(&before));
}

}  // namespace
}  // namespace lockstep::host
