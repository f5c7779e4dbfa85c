# lockstep_test(NAME SOURCES file... [LINK target...] LABELS label... [TIMEOUT seconds] [NO_MAIN])
#
# One GoogleTest program `NAME_test` and one ctest entry `NAME`. Tests may rely on these variables in their
# environment: LOCKSTEP_BUILD_DIR, LOCKSTEP_SOURCE_DIR (absolute paths) and LOCKSTEP_PYTHON (an interpreter with
# torch, or empty).
if(LOCKSTEP_BUILD_TESTS)
  enable_testing()
  find_package(GTest 1.11 REQUIRED)
endif()

function(lockstep_test name)
  cmake_parse_arguments(ARG "NO_MAIN" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  string(REPLACE "." "_" program ${name}_test)
  add_executable(${program} ${ARG_SOURCES})
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${program} PRIVATE ${ARG_LINK} lockstep_flags GTest::gmock)
  if(ARG_NO_MAIN)
    target_link_libraries(${program} PRIVATE GTest::gtest)
  else()
    target_link_libraries(${program} PRIVATE GTest::gtest_main)
  endif()
  foreach(link IN LISTS ARG_LINK)
    if(TARGET ${link} AND LOCKSTEP_TORCH)
      get_target_property(reused ${link} PRECOMPILE_HEADERS_REUSE_FROM)
      if(reused)
        lockstep_reuse_torch_pch(${program})
        break()
      endif()
    endif()
  endforeach()
  add_test(NAME ${name} COMMAND ${program})
  # lockstep_unit_tests: what the sanitizer presets build, a third of everything.
  if("unit" IN_LIST ARG_LABELS)
    if(NOT TARGET lockstep_unit_tests)
      add_custom_target(lockstep_unit_tests)
    endif()
    add_dependencies(lockstep_unit_tests ${program})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "LOCKSTEP_BUILD_DIR=${CMAKE_BINARY_DIR};LOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR};LOCKSTEP_PYTHON=${LOCKSTEP_PYTHON}")
endfunction()

# lockstep_python_part(NAME FILTER): the tests FILTER of the program behind the ctest entry NAME need a Python with torch.
# They become the entry `NAME.python` (labels `python`, `steady`) and leave NAME, so that a run without Python leaves out
# what it cannot run instead of skipping it.
function(lockstep_python_part name filter)
  if(NOT TEST ${name})
    return()
  endif()
  string(REPLACE "." "_" program ${name}_test)
  get_test_property(${name} ENVIRONMENT environment)
  add_test(NAME ${name}.python COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(${name}.python PROPERTIES LABELS "python;steady" TIMEOUT 300 ENVIRONMENT "${environment}")
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment};GTEST_FILTER=-${filter}")
endfunction()
