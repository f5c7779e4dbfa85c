#include "lockstep/host/loaded_objects.h"

#include <link.h>

namespace lockstep::host {

std::vector<std::filesystem::path> loaded_objects() {
  std::vector<std::filesystem::path> objects;
  const auto append = [](dl_phdr_info* object, std::size_t, void* list) {
    // The program has an empty name.
    if (object->dlpi_name != nullptr && *object->dlpi_name != '\0') {
      static_cast<std::vector<std::filesystem::path>*>(list)->emplace_back(object->dlpi_name);
    }
    return 0;
  };
  ::dl_iterate_phdr(append, &objects);
  return objects;
}

}  // namespace lockstep::host
