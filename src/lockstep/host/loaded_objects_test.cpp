#include "lockstep/host/loaded_objects.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::host {
namespace {

bool is_loaded(const std::filesystem::path& path) {
  const auto objects = loaded_objects();
  return std::find(objects.begin(), objects.end(), path) != objects.end();
}

TEST(LoadedObjects, BR094_ALibraryIsAmongThemOnlyWhileItIsLoaded) {
  EXPECT_FALSE(is_loaded(LOCKSTEP_FAKE_NVML));
  void* library = ::dlopen(LOCKSTEP_FAKE_NVML, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_TRUE(is_loaded(LOCKSTEP_FAKE_NVML));
  ::dlclose(library);
  EXPECT_FALSE(is_loaded(LOCKSTEP_FAKE_NVML));
}

TEST(LoadedObjects, HoldTheLibrariesThatAreLinkedAndNotTheProgram) {
  const auto objects = loaded_objects();
  const auto is_libc = [](const std::filesystem::path& path) { return path.filename() == "libc.so.6"; };
  EXPECT_EQ(std::count_if(objects.begin(), objects.end(), is_libc), 1);
  EXPECT_FALSE(is_loaded(std::filesystem::read_symlink("/proc/self/exe")));
  EXPECT_FALSE(is_loaded(""));
}

}  // namespace
}  // namespace lockstep::host
