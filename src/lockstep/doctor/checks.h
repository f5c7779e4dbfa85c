#pragma once

#include <vector>

#include "lockstep/doctor/machine.h"
#include "lockstep/doctor/result.h"

namespace lockstep::doctor {

/// One check a function, one function a file: check_<name>.cpp. A check only looks, it changes nothing that stays.
Result check_system(const Machine& machine);
Result check_cpu(const Machine& machine);
Result check_memory(const Machine& machine);
Result check_shared_memory(const Machine& machine);
Result check_open_files(const Machine& machine);
Result check_processes(const Machine& machine);
Result check_loopback(const Machine& machine);
Result check_temporary_folder(const Machine& machine);
Result check_environment(const Machine& machine);
Result check_gpus(const Machine& machine);
Result check_visible_devices(const Machine& machine);
Result check_gpu_memory(const Machine& machine);
Result check_driver(const Machine& machine);
Result check_libtorch(const Machine& machine);
Result check_cuda(const Machine& machine);
Result check_kernels(const Machine& machine);
Result check_bf16(const Machine& machine);
Result check_disk(const Machine& machine);
Result check_fashion_mnist(const Machine& machine);
Result check_compiler(const Machine& machine);
Result check_python(const Machine& machine);

/// All of them, in this order. A check that throws becomes a failed result.
std::vector<Result> run_checks(const Machine& machine);

/// Whether at least `count` GPUs can be trained on: visible, and a kernel of LibTorch ran on each.
Result check_required_gpus(const Machine& machine, int count);

}  // namespace lockstep::doctor
