#pragma once

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/host/process.h"

namespace lockstep::e2e {

namespace fs = std::filesystem;

/// A command line that runs the real `lockstep` of this build, in a process or a terminal of its own. Whatever it
/// starts carries a mark in its environment, by which the test counts what is alive and kills what is left.
class Command {
 public:
  enum class Terminal { kNone, kOwn };

  /// `words`: the shell's words after `lockstep`, or, when `program` is given, that program's arguments.
  explicit Command(std::vector<std::string> words, Terminal terminal = Terminal::kNone,
                   std::string program = binary()) {
    static int counter = 0;
    mark_ = text("LOCKSTEP_E2E_MARK=", ::getpid(), ".", ++counter);
    words.insert(words.begin(), program);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string out = (folder_.path() / "out").string();
    const std::string err = (folder_.path() / "err").string();
    pid_ = terminal == Terminal::kOwn ? ::forkpty(&terminal_, nullptr, nullptr, nullptr) : ::fork();
    if (pid_ != 0) return;
    ::putenv(mark_.data());
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(signal, SIG_DFL);
    // Standard output stays the terminal where there is one, as under nohup before it redirects.
    if (terminal == Terminal::kNone) redirect(out, STDOUT_FILENO);
    redirect(err, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(126);
  }
  ~Command() {
    for (const auto& process : living()) host::send_signal(process, SIGKILL);
    if (!reaped_) wait();
    if (terminal_ >= 0) ::close(terminal_);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  static std::string binary() {
    const char* build = std::getenv("LOCKSTEP_BUILD_DIR");
    return text(build != nullptr ? build : ".", "/bin/lockstep");
  }

  int pid() const { return pid_; }
  const fs::path& folder() const { return folder_.path(); }
  std::string out() const { return read(folder_.path() / "out"); }
  std::string err() const { return read(folder_.path() / "err"); }

  void close_terminal() {
    ::close(terminal_);
    terminal_ = -1;
  }

  void type(std::string_view keys) { [[maybe_unused]] const bool typed = try_write_all(terminal_, keys); }

  /// Exit code, or 128+signal when the command itself was killed.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  bool is_running() const {
    siginfo_t ended{};  // waitpid() does not take WNOWAIT
    return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
  }

  /// Everything of this command that is alive, the launcher included.
  std::vector<host::ProcessInfo> living() const {
    std::vector<host::ProcessInfo> found;
    for (const auto& process : host::list_processes()) {
      if (!process.is_zombie() && host::was_started_with(process.pid, mark_)) found.push_back(process);
    }
    return found;
  }
  /// The process of a rank; 0 when it is not there yet. A rank's children have its environment too: the eldest counts.
  int rank_pid(int rank) const {
    int eldest = 0;
    for (const auto& process : living()) {
      if (process.parent == pid_ && host::was_started_with(process.pid, text("RANK=", rank))) eldest = process.pid;
    }
    return eldest;
  }

  template <typename Condition>
  static bool eventually(Condition condition, int milliseconds = 10000) {
    for (int waited = 0; waited < milliseconds; waited += 10) {
      if (condition()) return true;
      ::usleep(10000);
    }
    return condition();
  }
  bool wait_for_file(const std::string& name) const {
    return eventually([&] { return fs::exists(folder_.path() / name); });
  }

 private:
  static void redirect(const std::string& path, int fd) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, fd);
  }
  static std::string read(const fs::path& path) { return fs::exists(path) ? read_file(path) : std::string(); }

  TemporaryDirectory folder_{"lockstep-e2e"};
  std::string mark_;
  int pid_ = 0;
  int terminal_ = -1;
  bool reaped_ = false;
};

}  // namespace lockstep::e2e
