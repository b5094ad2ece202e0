# tessera_add_library(folder HEADERS ... SOURCES ... DEPS ... LIBS ...): one folder of
# tessera/, one static target tessera_<folder> with the alias tessera::<folder>.
# tessera_add_test(name SOURCES ... DEPS ... [LABELS ...]): one GoogleTest program without ranks.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()

add_library(tessera_flags INTERFACE)
target_include_directories(tessera_flags INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
target_compile_features(tessera_flags INTERFACE cxx_std_20)
target_compile_options(tessera_flags INTERFACE
  "$<BUILD_INTERFACE:-Wall;-Wextra>" "$<$<BOOL:${TESSERA_WERROR}>:$<BUILD_INTERFACE:-Werror>>")

function(tessera_add_library folder)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;DEPS;LIBS" ${ARGN})
  add_library(tessera_${folder} STATIC ${ARG_SOURCES})
  add_library(tessera::${folder} ALIAS tessera_${folder})
  list(TRANSFORM ARG_DEPS PREPEND tessera::)
  target_link_libraries(tessera_${folder} PUBLIC tessera_flags ${ARG_DEPS} ${ARG_LIBS})
  set_target_properties(tessera_${folder} PROPERTIES EXPORT_NAME ${folder} LINKER_LANGUAGE CXX)
  target_sources(tessera_${folder} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
endfunction()

function(tessera_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND tessera::)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "unit;${ARG_LABELS}")
endfunction()
