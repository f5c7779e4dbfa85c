# Options, and the interface target `lockstep_flags` that carries language level, warnings and sanitizers.
# Everything is scoped to our own targets: nothing is set globally that a consumer would inherit.

set(LOCKSTEP_TOP_LEVEL OFF)
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  set(LOCKSTEP_TOP_LEVEL ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
endif()

option(LOCKSTEP_TORCH "Build the torch side (library, worker); OFF builds the torch-free island alone" ON)
option(LOCKSTEP_BUILD_TESTS "Build the tests" ${LOCKSTEP_TOP_LEVEL})
option(LOCKSTEP_BUILD_EXAMPLES "Build examples/" ${LOCKSTEP_TOP_LEVEL})
option(LOCKSTEP_BUILD_BENCHMARKS "Build benchmarks/micro" OFF)
option(LOCKSTEP_INSTALL "Have rules for cmake --install" ${LOCKSTEP_TOP_LEVEL})
option(LOCKSTEP_WERROR "Treat warnings as errors" OFF)
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize= (e.g. address,undefined or thread)")

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND LOCKSTEP_TOP_LEVEL)
  # CCACHE_DEPEND: without it every miss preprocesses torch/torch.h a second time, past the precompiled header.
  # No include_file_mtime: a header that is edited while a file compiles would be stored with the object of the old one.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros
      ${LOCKSTEP_CCACHE})
endif()

add_library(lockstep_flags INTERFACE)
target_compile_features(lockstep_flags INTERFACE cxx_std_20)
target_compile_options(lockstep_flags INTERFACE
    -Wall -Wextra -Wshadow -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()
