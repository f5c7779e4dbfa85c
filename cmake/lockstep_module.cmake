# lockstep_module(NAME [TORCH] [DEPS module...] [LINK target...] [LINK_PUBLIC target...])
#
# The only way to add library code. It makes the static library `lockstep_NAME` (alias `lockstep::NAME`) out of
# every .cpp in the calling folder, so a file cannot be forgotten. Files whose name ends in _test.cpp become the
# test `NAME` (label `unit`); those ending in _dist_test.cpp the test `NAME.dist` (label `dist`), which may start
# ranks: tests/dist/run_ranks.h.
#   TORCH  the module is on the torch side: links LibTorch and shares the precompiled header
#   DEPS   other modules, by folder name; tools/check_layers.py holds them against the table in ARCHITECTURE.md
#   LINK / LINK_PUBLIC  other targets
function(lockstep_module name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS;LINK;LINK_PUBLIC" ${ARGN})
  if(ARG_TORCH AND NOT LOCKSTEP_TORCH)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB dist_tests CONFIGURE_DEPENDS *_dist_test.cpp)
  file(GLOB unit_tests CONFIGURE_DEPENDS *_test.cpp)
  list(REMOVE_ITEM sources ${unit_tests} "")
  list(REMOVE_ITEM unit_tests ${dist_tests} "")

  set(target lockstep_${name})
  add_library(${target} STATIC ${sources})
  add_library(lockstep::${name} ALIAS ${target})
  target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PUBLIC lockstep_${dep})
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARG_LINK} PUBLIC ${ARG_LINK_PUBLIC})
  if(ARG_TORCH)
    lockstep_use_torch(${target})
  endif()
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_MODULES ${target})

  if(LOCKSTEP_BUILD_TESTS AND unit_tests)
    lockstep_test(${name} SOURCES ${unit_tests} LINK ${target} ${ARG_LINK} LABELS unit)
  endif()
  if(LOCKSTEP_BUILD_TESTS AND dist_tests)
    lockstep_test(${name}.dist SOURCES ${dist_tests} LINK ${target} lockstep_test_ranks ${ARG_LINK} LABELS dist)
  endif()
endfunction()

# One precompiled header for the torch side: torch/torch.h costs 20 s a file without it, 7 s with it.
function(lockstep_use_torch target)
  target_link_libraries(${target} PUBLIC LibTorch::LibTorch)
  if(NOT TARGET lockstep_torch_pch)
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/torch_pch.cpp CONTENT "")
    add_library(lockstep_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
    target_link_libraries(lockstep_torch_pch PRIVATE LibTorch::LibTorch lockstep_flags)
    target_precompile_headers(lockstep_torch_pch PRIVATE <torch/torch.h>)
  endif()
  lockstep_reuse_torch_pch(${target})
endfunction()

# GCC refuses a precompiled header under other code-generation flags, so executables are compiled as libraries are.
function(lockstep_reuse_torch_pch target)
  target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
