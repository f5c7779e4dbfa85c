# FindLibTorch: plain imported target LibTorch::LibTorch for the CPU libraries of any LibTorch 2.9 or newer:
# a PyPI wheel, an unpacked LibTorch archive or an installed source build, with or without CUDA.
#
# Looked for in: -DLIBTORCH=DIR, the environment variable LIBTORCH, LIBTORCH_DEFAULT (an installed Lockstep says with it
# what it was built with), .venv/ of the project, `python3 -c "import torch"`.
# LibTorch's own CMake package is not used, since it demands a CUDA toolkit even for CPU use. libtorch_cuda is never
# linked: what needs a GPU loads it at run time, so that CPU programs start fast and the linker cannot drop it.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT, LibTorch_LIB_DIR, LibTorch_HAS_CUDA.

include(FindPackageHandleStandardArgs)
find_package(Threads REQUIRED)

set(LIBTORCH "" CACHE PATH "LibTorch root: the folder that holds include/ and lib/")

set(_candidates "")
if(LIBTORCH)
  list(APPEND _candidates ${LIBTORCH})
elseif(DEFINED ENV{LIBTORCH})
  list(APPEND _candidates $ENV{LIBTORCH})
elseif(LIBTORCH_DEFAULT)
  list(APPEND _candidates ${LIBTORCH_DEFAULT})
else()
  file(GLOB _venv ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(APPEND _candidates ${_venv})
  if(NOT _candidates)
    execute_process(COMMAND python3 -c "import os, torch; print(os.path.dirname(torch.__file__))"
                    OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _candidates ${_found})
  endif()
endif()

set(LibTorch_ROOT "")
foreach(_dir IN LISTS _candidates)
  if(EXISTS ${_dir}/lib/libtorch_cpu.so AND EXISTS ${_dir}/include/torch/csrc/api/include/torch/torch.h)
    set(LibTorch_ROOT ${_dir})
    break()
  endif()
endforeach()
if(NOT LibTorch_ROOT)
  list(JOIN _candidates ", " _tried)
  if(NOT _tried)
    set(_tried "nothing to try: LIBTORCH is not set, there is no .venv/ and python3 has no torch")
  endif()
  string(CONCAT _problem "LibTorch was not found (looked in: ${_tried}). A usable root holds lib/libtorch_cpu.so and "
      "include/torch/. Run Lockstep's scripts/setup.sh, which installs the wheel into .venv/, or pass -DLIBTORCH=DIR (an "
      "unpacked LibTorch archive, or .../site-packages/torch).")
  find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT REASON_FAILURE_MESSAGE "${_problem}")
  return()
endif()

file(STRINGS ${LibTorch_ROOT}/include/torch/headeronly/version.h _version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
if(NOT _version_lines)
  file(STRINGS ${LibTorch_ROOT}/include/torch/csrc/api/include/torch/version.h _version_lines REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
endif()
set(LibTorch_VERSION "")
foreach(_part MAJOR MINOR PATCH)
  string(REGEX MATCH "TORCH_VERSION_${_part} ([0-9]+)" _ "${_version_lines}")
  list(APPEND LibTorch_VERSION ${CMAKE_MATCH_1})
endforeach()
list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
if(LibTorch_VERSION VERSION_LESS 2.9)
  string(CONCAT _problem "LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT} is too old: Lockstep needs 2.9 or newer "
      "(Debian's own package is 1.13). Run scripts/setup.sh, or pass -DLIBTORCH=DIR.")
  set(LibTorch_ROOT "")
  find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT REASON_FAILURE_MESSAGE "${_problem}")
  return()
endif()
set(LibTorch_FOUND TRUE)

set(LibTorch_LIB_DIR ${LibTorch_ROOT}/lib)
set(LibTorch_HAS_CUDA OFF)
if(EXISTS ${LibTorch_LIB_DIR}/libtorch_cuda.so)
  set(LibTorch_HAS_CUDA ON)
endif()
# A CUDA wheel's libtorch_cpu needs a few libraries of the nvidia-* wheels beside it.
file(GLOB _nvidia_dirs ${LibTorch_ROOT}/../nvidia/*/lib)
set(_link_options "-Wl,-rpath,${LibTorch_LIB_DIR}")
foreach(_dir ${LibTorch_LIB_DIR} ${_nvidia_dirs})
  list(APPEND _link_options "-Wl,-rpath-link,${_dir}")
endforeach()

if(NOT TARGET LibTorch::LibTorch)
  foreach(_lib c10 torch_cpu)
    add_library(LibTorch::${_lib} SHARED IMPORTED)
    set_target_properties(LibTorch::${_lib} PROPERTIES IMPORTED_LOCATION ${LibTorch_LIB_DIR}/lib${_lib}.so)
  endforeach()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
      ${LibTorch_ROOT}/include ${LibTorch_ROOT}/include/torch/csrc/api/include)
  target_compile_definitions(LibTorch::LibTorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_compile_options(LibTorch::LibTorch INTERFACE -Wno-attributes)
  target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::torch_cpu LibTorch::c10 Threads::Threads)
  target_link_options(LibTorch::LibTorch INTERFACE ${_link_options})
endif()

# LibTorch's own OpenMP runtime, for files of ours whose at::parallel_for is to use LibTorch's threads: that header is
# serial unless it is compiled with -fopenmp. A second runtime in one process would bring a second team of threads, so
# only the very library that libtorch_cpu loads will do; without it such files stay serial.
set(LibTorch_OPENMP "")
execute_process(COMMAND ${CMAKE_READELF} -d ${LibTorch_LIB_DIR}/libtorch_cpu.so OUTPUT_VARIABLE _dynamic ERROR_QUIET)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND _dynamic MATCHES "NEEDED[^\n]*\\[(libgomp[^]\n]*)\\]")
  set(_openmp ${CMAKE_MATCH_1})
  find_library(_openmp_path NAMES ${_openmp} PATHS ${LibTorch_LIB_DIR} ${LibTorch_ROOT}/../torch.libs NO_DEFAULT_PATH NO_CACHE)
  if(_openmp_path)
    set(LibTorch_OPENMP ${_openmp_path})
  elseif(_openmp STREQUAL "libgomp.so.1")
    set(LibTorch_OPENMP gomp)  # the compiler's: one name, so the loader takes one library for both
  endif()
endif()

if(NOT LibTorch_FIND_QUIETLY)
  message(STATUS "LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT} (CUDA: ${LibTorch_HAS_CUDA}; OpenMP: ${LibTorch_OPENMP})")
endif()
