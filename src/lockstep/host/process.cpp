#include "lockstep/host/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "lockstep/base/text.h"

namespace lockstep::host {

namespace {

// PF_EXITING of the kernel's task flags, which /proc/<pid>/stat shows as its ninth field.
constexpr long long kExitingFlag = 0x4;

std::optional<std::string> read_small_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string content;
  char block[4096];
  for (;;) {
    const ssize_t got = ::read(fd.get(), block, sizeof(block));
    if (got < 0) return std::nullopt;
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::optional<ProcessInfo> parse_process_stat(std::string_view line) {
  // pid (name) state parent group session tty tty_group flags ... field 22: start time
  const auto open = line.find('(');
  const auto close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const auto words = split(trim(line.substr(close + 1)), ' ');
  if (words.size() < 20 || words[0].size() != 1) return std::nullopt;
  long long pid = 0;
  long long parent = 0;
  long long group = 0;
  long long flags = 0;
  long long start_ticks = 0;
  if (!parse_number(trim(line.substr(0, open)), pid) || !parse_number(words[1], parent) ||
      !parse_number(words[2], group) || !parse_number(words[6], flags) || !parse_number(words[19], start_ticks)) {
    return std::nullopt;
  }
  ProcessInfo info;
  info.pid = static_cast<int>(pid);
  info.parent = static_cast<int>(parent);
  info.group = static_cast<int>(group);
  info.state = words[0][0];
  info.exiting = (flags & kExitingFlag) != 0;
  info.start_ticks = static_cast<std::uint64_t>(start_ticks);
  return info;
}

std::optional<ProcessInfo> read_process(int pid) {
  const auto line = read_small_file(text("/proc/", pid, "/stat"));
  return line ? parse_process_stat(*line) : std::nullopt;
}

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> processes;
  const auto close_folder = [](DIR* folder) { ::closedir(folder); };
  const std::unique_ptr<DIR, decltype(close_folder)> folder(::opendir("/proc"), close_folder);
  if (!folder) return processes;
  while (const dirent* entry = ::readdir(folder.get())) {
    long long pid = 0;
    if (!parse_number(entry->d_name, pid)) continue;
    if (const auto info = read_process(static_cast<int>(pid))) processes.push_back(*info);
  }
  return processes;
}

std::vector<ProcessInfo> descendants(const std::vector<ProcessInfo>& processes, int root,
                                     const std::function<bool(const ProcessInfo&)>& enter) {
  std::multimap<int, const ProcessInfo*> by_parent;
  for (const auto& process : processes) by_parent.emplace(process.parent, &process);
  std::vector<ProcessInfo> found;
  std::deque<int> parents{root};
  // The list is not a snapshot: a reused pid could close a circle, which the count bounds.
  while (!parents.empty() && found.size() <= processes.size()) {
    const auto [begin, end] = by_parent.equal_range(parents.front());
    parents.pop_front();
    for (auto child = begin; child != end; ++child) {
      if (!enter(*child->second)) continue;
      found.push_back(*child->second);
      parents.push_back(child->second->pid);
    }
  }
  return found;
}

bool was_started_with(int pid, std::string_view assignment) {
  const auto environment = read_small_file(text("/proc/", pid, "/environ"));
  if (!environment) return false;
  for (const auto& entry : split(*environment, '\0')) {
    if (entry == assignment) return true;
  }
  return false;
}

UniqueFd open_process(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool send_signal(const ProcessInfo& process, int signal) {
  const UniqueFd fd = open_process(process.pid);
  // The descriptor pins whichever process has the pid now; only then is it certain that it still is the same one.
  const auto now = read_process(process.pid);
  if (!now || now->start_ticks != process.start_ticks) return false;
  if (fd) return ::syscall(SYS_pidfd_send_signal, fd.get(), signal, nullptr, 0) == 0;
  return ::kill(process.pid, signal) == 0;
}

int wait_for(int pid) {
  int status = 0;
  for (;;) {
    const int reaped = ::waitpid(pid, &status, 0);
    if (reaped == pid) return status;
    if (reaped < 0 && errno != EINTR) return -1;
  }
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? text("SIG", name) : text("signal ", signal);
}

}  // namespace lockstep::host
