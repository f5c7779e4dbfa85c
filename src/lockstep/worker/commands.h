#pragma once

#include <filesystem>

namespace lockstep::worker {

/// One process of `lockstep train`: a rank, or all ranks of `dp` as threads. Returns the exit code.
int train(const std::filesystem::path& plan_file);

/// Says on standard output, as one JSON object, which LibTorch this is and whether its CUDA works. Returns 0.
int probe();

/// Says on standard output why this LibTorch cannot do CUDA at all, or nothing. Returns 0.
int why_cpu_only();

}  // namespace lockstep::worker
