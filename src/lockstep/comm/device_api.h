#pragma once

#include <cstddef>
#include <string>

namespace lockstep::comm {

/// The functions of the CUDA runtime that the NCCL communicator calls. Codes are CUDA's: 0 is success. Handles
/// (streams, events) are opaque.
struct CudaApi {
  static constexpr int kNotReady = 600;  ///< cudaErrorNotReady

  int (*set_device)(int device);
  int (*device_pci_bus_id)(char* text, int bytes, int device);
  int (*stream_priority_range)(int* least, int* greatest);
  int (*stream_create)(void** stream, unsigned flags, int priority);
  int (*stream_destroy)(void* stream);
  int (*stream_wait_event)(void* stream, void* event, unsigned flags);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  const char* (*error_text)(int code);
};

struct NcclId {
  char bytes[128] = {};
};

/// The functions of NCCL that the communicator calls. Codes are NCCL's: 0 is success.
struct NcclApi {
  static constexpr int kInProgress = 7;  ///< ncclInProgress

  int (*unique_id)(NcclId* id);
  int (*group_start)();
  int (*group_end)();
  int (*init_rank)(void** communicator, int size, NcclId id, int rank);
  int (*destroy)(void* communicator);
  int (*abort)(void* communicator);
  int (*async_error)(void* communicator, int* code);
  const char* (*error_text)(int code);
  const char* (*last_error)(void* communicator);
  int (*all_reduce)(const void* input, void* output, std::size_t count, int dtype, int op, void* communicator,
                    void* stream);
  int (*reduce_scatter)(const void* input, void* output, std::size_t count, int dtype, int op, void* communicator,
                        void* stream);
  int (*all_gather)(const void* input, void* output, std::size_t count, int dtype, void* communicator, void* stream);
  int (*broadcast)(const void* input, void* output, std::size_t count, int dtype, int root, void* communicator,
                   void* stream);

  /// What a code means, with NCCL's own words on it when there are any.
  std::string describe(int code, void* communicator) const;
};

struct DeviceApi {
  CudaApi cuda;
  NcclApi nccl;
};

/// Finds both in this process, where LibTorch's CUDA part has brought them (on its own or beside it), or else by the
/// loader's search. Nothing of ours links them. Throws ConfigError that names what is missing.
DeviceApi find_device_api();

}  // namespace lockstep::comm
