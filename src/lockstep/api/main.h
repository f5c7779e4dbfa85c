#pragma once

#include <functional>

namespace lockstep {

class Session;

struct MainOptions {
  /// The program has arguments of its own: every word that is no flag of the runtime, --help too, is left for the body
  /// in Session::arguments(). Otherwise such words are refused with exit code 2, as the command lockstep does.
  bool takes_arguments = false;
};

/// Runs `body` as every rank of the job and returns the process exit code.
///
/// Takes these from the command line:
///   --nproc N           start N ranks on this host (default 1); refused under a launcher, which has done that already
///   --strategy NAME     ddp (a process a rank, the default) or dp (one process, a thread a rank)
///   --device auto|cpu|cuda   default auto: cuda when every rank of this host can have a GPU, else cpu
///   --seed N            default 0
///   --help              lists them
/// With `dp` the body runs in N threads at once: what it captures by reference is shared between them.
/// Exceptions that leave the body are reported with the rank; the exit code is lockstep::Error::exit_code(), else 1.
int main(int argc, char** argv, const std::function<void(Session&)>& body, const MainOptions& options = {});

}  // namespace lockstep
