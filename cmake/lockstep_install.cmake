# What `cmake --install` copies: the command with its man page and completions, liblockstep, the headers that
# lockstep/lockstep.h reaches, a CMake package and a pkg-config file. All of it may be moved afterwards; LibTorch stays
# where it is. How users build with it: docs/use-from-your-program.md, whose lines the tests of tests/consumer run.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
set(install_files ${PROJECT_BINARY_DIR}/install)
string(REGEX REPLACE "[^/]+" ".." pkgconfig_to_prefix ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Only what lockstep/lockstep.h reaches is public.
set(headers "")
set(pending lockstep/lockstep.h)
while(pending)
  list(POP_FRONT pending header)
  if(header IN_LIST headers)
    continue()
  endif()
  list(APPEND headers ${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${header})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/src/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/${header} includes REGEX "^#include \"lockstep/")
  list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
  list(APPEND pending ${includes})
endwhile()

install(TARGETS lockstep EXPORT lockstepTargets)
install(TARGETS lockstep_cli lockstep-worker)
# The run path of the build, but for the build's own folders: without it the worker would not find LibTorch.
set_target_properties(lockstep lockstep-worker PROPERTIES INSTALL_RPATH ${LibTorch_LIB_DIR})

# The command writes these about itself.
foreach(page "man>lockstep.1" "completion bash>lockstep" "completion zsh>_lockstep")
  string(REGEX MATCH "(.*)>(.*)" _ ${page})
  string(REPLACE " " "\" \"" words ${CMAKE_MATCH_1})
  install(CODE "file(MAKE_DIRECTORY \"${install_files}\")
      execute_process(COMMAND \"$<TARGET_FILE:lockstep_cli>\" \"${words}\"
                      OUTPUT_FILE \"${install_files}/${CMAKE_MATCH_2}\" COMMAND_ERROR_IS_FATAL ANY)")
endforeach()
install(FILES ${install_files}/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${install_files}/lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${install_files}/_lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# zlib and OpenSSL are inside liblockstep.so, as dependencies of its own; who links liblockstep.a has to link them.
get_target_property(library_type lockstep TYPE)
set(LOCKSTEP_IS_STATIC OFF)
set(pkgconfig_requires "")
if(library_type STREQUAL "STATIC_LIBRARY")
  set(LOCKSTEP_IS_STATIC ON)
  set(pkgconfig_requires "zlib, libcrypto")
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lockstepConfig.cmake.in ${install_files}/lockstepConfig.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${install_files}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in ${install_files}/lockstep.pc @ONLY)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})
install(FILES ${install_files}/lockstepConfig.cmake ${install_files}/lockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${package_dir})
install(FILES ${install_files}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
