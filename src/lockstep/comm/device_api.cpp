#include "lockstep/comm/device_api.h"

#include <dlfcn.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

/// Functions of one library: among what the process has loaded, else in the first of `names` that loads. A library
/// stays loaded: the CUDA runtime cannot be unloaded and loaded again.
class Symbols {
 public:
  Symbols(const char* probe, std::initializer_list<const char*> names) {
    if (::dlsym(RTLD_DEFAULT, probe) != nullptr) {
      handle_ = RTLD_DEFAULT;
      return;
    }
    for (const char* name : names) {
      handle_ = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
      if (handle_ != nullptr) return;
      failure_ = ::dlerror();
    }
    throw ConfigError(
        text("several GPUs need NCCL and the CUDA runtime, and ", *names.begin(), " does not load: ", failure_),
        "a LibTorch for CUDA brings both: see `lockstep doctor`");
  }

  template <typename Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function == nullptr) {
      throw ConfigError(text("this NCCL or CUDA runtime has no function ", name), "update the LibTorch: 2.9 or newer");
    }
  }

 private:
  void* handle_ = nullptr;
  std::string failure_;
};

CudaApi find_cuda() {
  const Symbols symbols("cudaStreamCreateWithPriority", {"libcudart.so.13", "libcudart.so.12"});
  CudaApi api;
  symbols.find(api.set_device, "cudaSetDevice");
  symbols.find(api.device_pci_bus_id, "cudaDeviceGetPCIBusId");
  symbols.find(api.stream_priority_range, "cudaDeviceGetStreamPriorityRange");
  symbols.find(api.stream_create, "cudaStreamCreateWithPriority");
  symbols.find(api.stream_destroy, "cudaStreamDestroy");
  symbols.find(api.stream_wait_event, "cudaStreamWaitEvent");
  symbols.find(api.event_create, "cudaEventCreateWithFlags");
  symbols.find(api.event_destroy, "cudaEventDestroy");
  symbols.find(api.event_record, "cudaEventRecord");
  symbols.find(api.event_query, "cudaEventQuery");
  symbols.find(api.error_text, "cudaGetErrorString");
  return api;
}

NcclApi find_nccl() {
  const Symbols symbols("ncclCommInitRank", {"libnccl.so.2"});
  NcclApi api;
  symbols.find(api.unique_id, "ncclGetUniqueId");
  symbols.find(api.group_start, "ncclGroupStart");
  symbols.find(api.group_end, "ncclGroupEnd");
  symbols.find(api.init_rank, "ncclCommInitRank");
  symbols.find(api.destroy, "ncclCommDestroy");
  symbols.find(api.abort, "ncclCommAbort");
  symbols.find(api.async_error, "ncclCommGetAsyncError");
  symbols.find(api.error_text, "ncclGetErrorString");
  symbols.find(api.last_error, "ncclGetLastError");
  symbols.find(api.all_reduce, "ncclAllReduce");
  symbols.find(api.reduce_scatter, "ncclReduceScatter");
  symbols.find(api.all_gather, "ncclAllGather");
  symbols.find(api.broadcast, "ncclBroadcast");
  return api;
}

}  // namespace

std::string NcclApi::describe(int code, void* communicator) const {
  const char* last = last_error(communicator);
  return last == nullptr || *last == '\0' ? text(error_text(code)) : text(error_text(code), " (", last, ")");
}

DeviceApi find_device_api() {
  return {find_cuda(), find_nccl()};
}

}  // namespace lockstep::comm
