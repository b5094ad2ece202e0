# cmake --install: one target per folder (tessera::base ...), tessera::tessera for
# all of them, the headers that each folder lists, the program, and the files that
# find_package(tessera) reads.
#   component development: libraries, headers, package files; program: the program, its tokenizer,
#   man pages and completions
include(CMakePackageConfigHelpers)

get_property(tessera_libraries GLOBAL PROPERTY tessera_libraries)
add_custom_target(tessera_libraries DEPENDS ${tessera_libraries})

add_library(tessera_all INTERFACE)
add_library(tessera::tessera ALIAS tessera_all)
target_link_libraries(tessera_all INTERFACE ${tessera_libraries})
if(EXISTS "${PROJECT_SOURCE_DIR}/tessera/tessera.h")
  target_sources(tessera_all INTERFACE FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES "${PROJECT_SOURCE_DIR}/tessera/tessera.h")
else()
  target_sources(tessera_all INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}")
endif()
set_target_properties(tessera_all PROPERTIES EXPORT_NAME tessera)
set_target_properties(tessera_flags PROPERTIES EXPORT_NAME flags)

install(TARGETS tessera_flags tessera_all ${tessera_libraries} EXPORT tessera_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tessera_targets NAMESPACE tessera:: FILE tessera-targets.cmake
  DESTINATION ${package_folder} COMPONENT development)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tessera-config.cmake.in"
  "${PROJECT_BINARY_DIR}/tessera-config.cmake"
  INSTALL_DESTINATION ${package_folder})
# Before 1.0 a new minor version may change what users call.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tessera-config-version.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/tessera-config.cmake"
  "${PROJECT_BINARY_DIR}/tessera-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/tessera_imports.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/tessera_torch.cmake"
  DESTINATION ${package_folder} COMPONENT development)

if(TARGET tessera_program)
  install(TARGETS tessera_program tessera_commands tessera_tokenizer
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" RENAME copyright
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/tessera COMPONENT program)
  if(NOT TESSERA_SANITIZE) # the program writes them when it is linked, see cli/CMakeLists.txt
    install(DIRECTORY "${PROJECT_BINARY_DIR}/share/"
      DESTINATION ${CMAKE_INSTALL_DATAROOTDIR} COMPONENT program)
  endif()
endif()
