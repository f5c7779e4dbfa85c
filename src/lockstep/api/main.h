#pragma once

#include <functional>

namespace lockstep {

class Session;

/// Runs `body` as every rank of the job and returns the process exit code.
///
/// Takes these from the command line; everything else is left for the body in Session::arguments():
///   --nproc N           start N ranks on this host (default 1); refused under a launcher, which has done that already
///   --strategy NAME     ddp (a process a rank, the default) or dp (one process, a thread a rank)
///   --device cpu|cuda   default: cuda when one rank runs and a usable GPU is there, else cpu
///   --seed N            default 0
/// With `dp` the body runs in N threads at once: what it captures by reference is shared between them.
/// Exceptions that leave the body are reported with the rank; the exit code is lockstep::Error::exit_code(), else 1.
int main(int argc, char** argv, const std::function<void(Session&)>& body);

}  // namespace lockstep
