#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/launch/job_processes.h"
#include "lockstep/launch/signals.h"

namespace lockstep::launch {

/// A TCP socket that listens already, so that its port cannot be taken by anybody else. Close-on-exec.
struct ListeningSocket {
  UniqueFd fd;
  int port = 0;
};

/// Binds `address` (an IPv4 address or name of this machine); without `port` the kernel picks a free one.
/// Throws ConfigError that names the flag's value: port busy, not allowed, address not of this machine.
ListeningSocket listen_on(const std::string& address, std::optional<int> port);

/// The process that serves the key-value store on the launcher's socket: `<program> store --fd N`. It says that it
/// serves by writing a line to its standard output; one that still lives after two seconds without a word is taken to
/// serve too, since until it does the kernel keeps the ranks' connections waiting.
struct StoreProcess {
  int pid = 0;
  UniqueFd output;        ///< reading end of its standard output, to be kept open: writing there must not kill it
  UniqueFd error_output;  ///< reading end of its standard error
};

/// Starts it in process group `group`. Returns nullopt when it cannot run, with the reason in `why_not`; nothing is
/// left then. Gives up at once when a stop signal comes in, which stays readable.
std::optional<StoreProcess> start_store(const std::filesystem::path& program, const ListeningSocket& socket, int group,
                                        const StopSignals& signals, JobProcesses& processes, std::string& why_not);

}  // namespace lockstep::launch
