// A stand-in for libnvidia-ml.so.1, loaded by the same path as the real one. Its answers come from the environment:
//   FAKE_NVML_INIT   code that nvmlInit_v2 returns (default 0)
//   FAKE_NVML_GPUS   cards as "name/capability/uuid/total MiB/used MiB", between ';'; a card "!15" fails with code 15

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= text.size() && !text.empty()) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::vector<std::string> cards() {
  const char* value = std::getenv("FAKE_NVML_GPUS");
  return split(value ? value : "", ';');
}

/// Handles are the index plus one, so that none is null.
std::vector<std::string> card(void* handle) {
  return split(cards().at(reinterpret_cast<std::size_t>(handle) - 1), '/');
}

int copy(const std::string& value, char* out, unsigned size) {
  std::snprintf(out, size, "%s", value.c_str());
  return 0;
}

}  // namespace

struct Memory {
  unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() {
  const char* code = std::getenv("FAKE_NVML_INIT");
  return code ? std::atoi(code) : 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 15 ? "GPU is lost" : "fake error";
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  const char* version = std::getenv("FAKE_NVML_DRIVER");
  return copy(version ? version : "580.65.06", out, size);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  const char* value = std::getenv("FAKE_NVML_CUDA");
  *version = value ? std::atoi(value) : 13000;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(cards().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  const std::string description = cards().at(index);
  if (description.front() == '!') return std::atoi(description.c_str() + 1);
  *handle = reinterpret_cast<void*>(static_cast<std::size_t>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void* handle, char* out, unsigned size) {
  return copy(card(handle)[0], out, size);
}
int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  return std::sscanf(card(handle)[1].c_str(), "%d.%d", major, minor) == 2 ? 0 : 999;
}
int nvmlDeviceGetUUID(void* handle, char* out, unsigned size) {
  return copy(card(handle)[2], out, size);
}
int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  memory->total = std::strtoull(card(handle)[3].c_str(), nullptr, 10) << 20;
  memory->used = std::strtoull(card(handle)[4].c_str(), nullptr, 10) << 20;
  memory->free = memory->total - memory->used;
  return 0;
}
}
