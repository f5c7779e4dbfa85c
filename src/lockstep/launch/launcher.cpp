#include "lockstep/launch/launcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {

namespace {

// With a standard descriptor closed (`lockstep run ... >&-`) our pipes would take its number, and a rank's dup2 onto
// it would close the pipe. Whatever is missing becomes /dev/null.
void fill_standard_descriptors() {
  for (;;) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0) throw SystemError::from_errno("cannot open /dev/null", errno);
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
  }
}

void check(const LaunchOptions& options) {
  if (options.command.empty()) throw ConfigError("there is no program to run");
  if (options.num_processes < 1) {
    throw ConfigError(text("the number of processes is ", options.num_processes, ": expected 1 or more"));
  }
  if (options.master_port && (*options.master_port < 1 || *options.master_port > 65535)) {
    throw ConfigError(text("the master port is ", *options.master_port, ": expected 1 to 65535"));
  }
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  fill_standard_descriptors();
  Job job(options);
  job.start();
  return job.watch();
}

}  // namespace lockstep::launch
