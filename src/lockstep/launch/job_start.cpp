// How a job starts: folders, guard, store, ranks.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/host/cpus.h"
#include "lockstep/host/process.h"
#include "lockstep/launch/child.h"
#include "lockstep/launch/environment.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {

namespace fs = std::filesystem;

namespace {

std::string make_run_id() {
  unsigned char bytes[8] = {};
  if (::getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
    throw SystemError::from_errno("cannot get random bytes for the job's id", errno);
  }
  std::string id = "lockstep-";
  for (const unsigned char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    id += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return id;
}

fs::path temporary_root() {
  std::error_code error;
  const fs::path root = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : root;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError(text("cannot make the folder ", folder.string(), ": ", error.message()));
}

}  // namespace

Job::Job(const LaunchOptions& options)
    : options_(options),
      executable_(find_program(options.command.front())),
      run_id_(make_run_id()),
      console_out_(STDOUT_FILENO),
      console_err_(STDERR_FILENO),
      processes_(job_mark(run_id_)),
      socket_(listen_on(options.master_addr, options.master_port)),
      board_(options.num_processes),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      ranks_(static_cast<std::size_t>(options.num_processes)) {
  if (!epoll_) throw SystemError::from_errno("cannot make an event queue (epoll)", errno);
  // The guard comes before the folder that it removes should we be killed: at no moment is there one without the other.
  const fs::path temporary = options.log_dir ? fs::path() : temporary_root() / run_id_;
  guard_.emplace(job_mark(run_id_), temporary);
  processes_.add(guard_->group());
  processes_.set_group(guard_->group());
  if (!options.log_dir) {
    if (::mkdir(temporary.c_str(), 0700) != 0) {
      throw SystemError::from_errno(text("cannot make the folder ", temporary.string()), errno);
    }
    temporary_folder_.path = temporary;
  }
  prepare_folders();
}

Job::RemovedAtEnd::~RemovedAtEnd() {
  std::error_code ignored;
  if (!path.empty()) fs::remove_all(path, ignored);
}

Job::~Job() {
  if (done_) return;
  console_err_.flush();
  kill_everything();
  for (auto& rank : ranks_) {
    if (rank.alive) host::wait_for(rank.pid);
    processes_.remove(rank.pid);
  }
  if (store_) host::wait_for(store_->pid);
  // What a rank started before it was killed, and what that started meanwhile.
  for (int round = 0; round < 100; ++round, ::usleep(10000)) {
    const auto left = processes_.find({guard_->group(), store_ ? store_->pid : 0});
    if (left.empty()) return;
    for (const auto& process : left) host::send_signal(process, SIGKILL);
  }
}

void Job::prepare_folders() {
  const fs::path root = options_.log_dir ? fs::absolute(*options_.log_dir) : temporary_folder_.path;
  attempt_folder_ = root / "attempt_0";
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    make_folder(attempt_folder_ / text(rank));
    take_refusal(attempt_folder_ / text(rank));  // of an earlier job with this log folder that was killed
  }
  if (!options_.log_dir) return;
  const fs::path log = root / "launcher.log";
  launcher_log_ = UniqueFd(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!launcher_log_) throw SystemError::from_errno(text("cannot write the log file ", log.string()), errno);
}

void Job::start() {
  watch_descriptor(signals_.fd(), EventSource::kSignals, 0, EPOLLIN);
  announce_threads();
  start_store_server();
  for (int rank = 0; rank < options_.num_processes; ++rank) {
    take_stop_signals();
    if (result_.stop_signal != 0) return;
    start_rank(rank);
  }
}

void Job::announce_threads() {
  const auto overlay = options_.environment.find("OMP_NUM_THREADS");
  const char* variable = std::getenv("OMP_NUM_THREADS");
  std::optional<std::string> set_by_user;
  if (variable != nullptr) set_by_user = variable;
  if (overlay != options_.environment.end()) set_by_user = overlay->second;
  const auto threads =
      choose_threads(set_by_user, host::usable_cpus(), options_.num_processes * options_.ranks_per_process,
                     options_.most_threads_per_rank, options_.tune_openmp);
  omp_num_threads_ = threads.value;
  if (threads.message.empty()) return;
  threads.is_warning ? warn(threads.message) : notice(threads.message);
}

void Job::start_store_server() {
  if (options_.store_server == StoreServer::kRankZero) return;
  std::string why_not;
  store_ = start_store(options_.worker_program, socket_, guard_->group(), signals_, processes_, why_not);
  agent_serves_store_ = store_.has_value();
  if (store_) {
    for (auto* fd : {&store_->output, &store_->error_output}) {
      watch_descriptor(fd->get(), EventSource::kStoreStream, static_cast<int>(store_streams_.size()), EPOLLIN);
      store_streams_.push_back(std::make_unique<RankStream>(std::move(*fd), &console_err_, "[store] ", fs::path()));
    }
    // The store's own copy is the one that counts: connections to a dead store must fail, not wait in our backlog.
    socket_.fd.reset();
    return;
  }
  warn(text("the key-value store cannot be served by the launcher (", why_not, "); rank 0 has to bind port ",
            socket_.port, ", which another program could take first"));
  socket_.fd.reset();
}

std::vector<std::string> Job::environment_of(int rank) const {
  JobEnvironment job;
  job.num_processes = options_.num_processes;
  job.master_addr = options_.master_addr;
  job.master_port = socket_.port;
  job.agent_serves_store = agent_serves_store_;
  job.run_id = run_id_;
  job.attempt_folder = attempt_folder_;
  job.status_fd = board_.fd();
  if (options_.store_server == StoreServer::kRankZero) job.store_fd = socket_.fd.get();
  job.omp_num_threads = omp_num_threads_;
  job.tune_openmp = options_.tune_openmp;
  job.overlay = options_.environment;
  return rank_environment(inherited_environment(), job, rank);
}

void Job::start_rank(int rank) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  const std::string prefix = options_.prefix_output ? text("[rank ", rank, "] ") : "";
  const fs::path logs = options_.log_dir ? attempt_folder_ / text(rank) : fs::path();
  state.out = std::make_unique<RankStream>(std::move(out.read), options_.quiet_stdout ? &console_err_ : &console_out_,
                                           prefix, logs.empty() ? logs : logs / "stdout.log");
  state.err = std::make_unique<RankStream>(std::move(err.read), &console_err_, prefix,
                                           logs.empty() ? logs : logs / "stderr.log");
  ChildRequest request;
  request.executable = executable_;
  request.command = options_.command;
  request.environment = environment_of(rank);
  request.group = guard_->group();
  request.stdout_fd = out.write.get();
  request.stderr_fd = err.write.get();
  request.inherited_fds = {board_.fd()};
  if (rank == 0 && options_.store_server == StoreServer::kRankZero) request.inherited_fds.push_back(socket_.fd.get());
  state.pid = start_child(request, signals_);
  state.alive = true;
  processes_.add(state.pid);
  state.pidfd = host::open_process(state.pid);
  if (state.pidfd) watch_descriptor(state.pidfd.get(), EventSource::kRankEnd, rank, EPOLLIN);
  if (!reading_paused_) {
    watch_descriptor(state.out->fd(), EventSource::kRankStream, 2 * rank, EPOLLIN);
    watch_descriptor(state.err->fd(), EventSource::kRankStream, 2 * rank + 1, EPOLLIN);
  }
}

}  // namespace lockstep::launch
