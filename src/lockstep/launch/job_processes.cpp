#include "lockstep/launch/job_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::launch {

JobProcesses::JobProcesses(std::string mark) : mark_(std::move(mark)) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  for (const auto& process : host::list_processes()) {
    if (process.parent == ::getpid()) children_before_.push_back(process);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

JobProcesses::~JobProcesses() {
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

bool JobProcesses::is_in_job(const host::ProcessInfo& child) const {
  if (own_children_.count(child.pid) != 0) return true;
  for (const auto& before : children_before_) {
    if (before.pid == child.pid && before.start_ticks == child.start_ticks) return false;
  }
  // Without earlier children every orphan that came to us descends from the job.
  return children_before_.empty() || child.group == group_ || host::was_started_with(child.pid, mark_);
}

std::vector<host::ProcessInfo> JobProcesses::find(const std::set<int>& except) {
  const int self = ::getpid();
  const auto processes = host::list_processes();
  auto found = host::descendants(processes, self, [&](const host::ProcessInfo& process) {
    if (process.parent != self) return true;
    if (own_children_.count(process.pid) != 0) return true;
    // An orphan that has ended is reaped whoever it descends from: init would have done the same.
    const bool was_there = std::any_of(children_before_.begin(), children_before_.end(),
                                       [&](const host::ProcessInfo& before) { return before.pid == process.pid; });
    if (!was_there && process.is_zombie()) return ::waitpid(process.pid, nullptr, WNOHANG) == 0;
    return is_in_job(process);
  });
  std::erase_if(found, [&](const host::ProcessInfo& process) {
    // A zombie below a living parent is that parent's to reap; below a dead one it comes to us.
    return except.count(process.pid) != 0 || (process.is_zombie() && process.parent != self);
  });
  return found;
}

}  // namespace lockstep::launch
