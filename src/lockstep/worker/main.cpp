// lockstep-worker: what `lockstep` starts and people do not. It links LibTorch, the command does not.
//
//   lockstep-worker train PLAN.json   one process of a training run
//   lockstep-worker store --fd N      serves a TCPStore on an inherited listening socket until its parent is gone
//   lockstep-worker probe             LibTorch and CUDA as JSON
//   lockstep-worker why-cpu-only      why LibTorch has no CUDA, or nothing; quick

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank_status.h"
#include "lockstep/base/text.h"
#include "lockstep/base/world.h"
#include "lockstep/c10d/tcp_store.h"
#include "lockstep/worker/commands.h"

namespace {

int run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "train") return lockstep::worker::train(words[1]);
  if (words.size() == 1 && words[0] == "probe") return lockstep::worker::probe();
  if (words.size() == 1 && words[0] == "why-cpu-only") return lockstep::worker::why_cpu_only();
  long long fd = -1;
  if (words.size() == 3 && words[0] == "store" && words[1] == "--fd" && lockstep::parse_number(words[2], fd)) {
    lockstep::c10d::serve_store(static_cast<int>(fd));
    return 0;
  }
  throw lockstep::ConfigError("usage: lockstep-worker train PLAN.json | store --fd N | probe | why-cpu-only",
                              "this program is started by `lockstep`");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const lockstep::Error& error) {
    if (!lockstep::hand_over_refusal(error)) lockstep::log::error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    lockstep::log::error(error.what());
    return 1;
  }
}
