#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::host {

/// The shared libraries in this process right now, with the paths under which the loader found them, in its order; the
/// program itself is left out. What a linker dropped or a loader could not find is not among them, whatever the program
/// was meant to link. Thread-safe. Source: dl_iterate_phdr(3).
std::vector<std::filesystem::path> loaded_objects();

}  // namespace lockstep::host
