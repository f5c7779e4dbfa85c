#include "lockstep/host/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::host {

namespace fs = std::filesystem;

namespace {

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<double> quota_of(std::string_view quota_us, std::string_view period_us) {
  long long quota = 0;
  long long period = 0;
  // "max" (version 2) and -1 (version 1) mean: no limit.
  if (!parse_number(trim(quota_us), quota) || !parse_number(trim(period_us), period)) return std::nullopt;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<double> group_quota_v2(const fs::path& group) {
  const auto line = first_line(group / "cpu.max");
  if (!line) return std::nullopt;
  const auto words = split(trim(*line), ' ');
  return words.size() == 2 ? quota_of(words[0], words[1]) : std::nullopt;
}

std::optional<double> group_quota_v1(const fs::path& group) {
  const auto quota = first_line(group / "cpu.cfs_quota_us");
  const auto period = first_line(group / "cpu.cfs_period_us");
  return quota && period ? quota_of(*quota, *period) : std::nullopt;
}

// A quota binds every group below it. A container may show paths of the host that do not exist inside it: they are
// skipped, and the walk still ends at the mount point itself, which then is the container's own group.
template <typename GroupQuota>
void lower_to_ancestors(std::optional<double>& quota, const fs::path& mount, const std::string& group,
                        GroupQuota group_quota) {
  fs::path relative = fs::path(group).relative_path().lexically_normal();
  for (;;) {
    if (const auto found = group_quota(mount / relative)) quota = quota ? std::min(*quota, *found) : *found;
    if (relative.empty() || relative == ".") return;
    relative = relative.parent_path();
  }
}

}  // namespace

std::optional<double> cpu_quota(const CgroupFiles& files) {
  std::optional<double> quota;
  std::ifstream membership(files.membership);
  for (std::string line; std::getline(membership, line);) {
    // "hierarchy:controllers:path"; version 2 has hierarchy 0 and no controllers. The path may hold colons.
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      lower_to_ancestors(quota, files.mount, group, group_quota_v2);
      lower_to_ancestors(quota, files.mount / "unified", group, group_quota_v2);
      continue;
    }
    const auto names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "cpu") == names.end()) continue;
    lower_to_ancestors(quota, files.mount / controllers, group, group_quota_v1);
    if (controllers != "cpu") lower_to_ancestors(quota, files.mount / "cpu", group, group_quota_v1);
  }
  return quota;
}

int affinity_cpus() {
  // The kernel refuses a mask smaller than its own with EINVAL: grow until it fits.
  for (int num_cpus = 1024; num_cpus <= 1 << 20; num_cpus *= 2) {
    std::vector<cpu_set_t> sets(static_cast<std::size_t>(num_cpus) / (8 * sizeof(cpu_set_t)));
    const std::size_t size_bytes = sets.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, size_bytes, sets.data()) == 0) return CPU_COUNT_S(size_bytes, sets.data());
    if (errno != EINVAL) break;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int usable_cpus(const CgroupFiles& files) {
  const auto quota = cpu_quota(files);
  const int allowed = affinity_cpus();
  return std::max(1, quota && *quota < allowed ? static_cast<int>(*quota) : allowed);
}

}  // namespace lockstep::host
