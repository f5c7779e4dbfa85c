#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/host/process.h"

namespace lockstep::launch {

/// Finds every process that belongs to the job, also a helper whose parent died and one that left the job's process
/// group: for its lifetime this process is the "child subreaper", so that orphans among its descendants become its
/// children instead of init's.
///
/// Children that existed before, and all below them, are never touched. While there are such children, an orphan counts
/// as the job's only when it is in the job's group or carries the job's mark in its environment.
class JobProcesses {
 public:
  explicit JobProcesses(std::string mark);
  ~JobProcesses();
  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;

  void set_group(int group) { group_ = group; }

  /// Declares a child that start_child() made: it is the job's, and find() leaves its exit code alone.
  void add(int pid) { own_children_.insert(pid); }

  /// Takes it back, once it is reaped.
  void remove(int pid) { own_children_.erase(pid); }

  /// Living processes of the job, without `except`. Orphans that have ended are reaped on the way.
  std::vector<host::ProcessInfo> find(const std::set<int>& except);

 private:
  bool is_in_job(const host::ProcessInfo& child) const;

  std::string mark_;
  int group_ = 0;
  int was_subreaper_ = 0;
  std::vector<host::ProcessInfo> children_before_;
  std::set<int> own_children_;
};

}  // namespace lockstep::launch
