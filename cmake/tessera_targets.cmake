# tessera_add_library(folder [TORCH] [MPI] HEADERS ... INTERNAL ... SOURCES ... DEPS ... LIBS ...)
#   one folder of tessera/ (or room of one, see nn), one static target tessera_<folder>
#   (INTERFACE without SOURCES), alias tessera::<folder>. HEADERS are installed: what scripts
#   include, and what that includes. INTERNAL ones are not, but other rooms and programs of this
#   repository include them; an unlisted header belongs to its room alone (the test style.private).
#   DEPS are such names.
#   TORCH links libtorch and uses the shared precompiled header.
# tessera_add_program(name [TORCH] SOURCES ... DEPS ... LIBS ...)
# tessera_add_test(name [TORCH] SOURCES ... DEPS ... [LABELS ...] [TIMEOUT s])
#   a GoogleTest program without ranks.
# tessera_add_mpi_test(name RANKS n... SOURCES ... DEPS ... [LABELS ...] [TIMEOUT s] [ARGS ...])
#   a GoogleTest program run under mpirun once for each number of ranks.
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The target all_verify_interface_header_sets compiles every public header alone.
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

# Several sources in one translation unit: reading libtorch's headers costs more than most of our
# files do. Off for clang-tidy and for working on one file at a time.
option(TESSERA_UNITY "join sources of a target while compiling" ON)
set(CMAKE_UNITY_BUILD ${TESSERA_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

find_program(CCACHE ccache)
if(CCACHE)
  # Without these ccache never hits a file that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${CCACHE}")
endif()

# -fPIC for programs too: the precompiled header is shared between them and the libraries.
add_library(tessera_flags INTERFACE)
target_include_directories(tessera_flags INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(tessera_flags INTERFACE cxx_std_20)
target_compile_options(tessera_flags INTERFACE
  "$<BUILD_INTERFACE:-Wall;-Wextra;-fPIC>" "$<$<BOOL:${TESSERA_WERROR}>:$<BUILD_INTERFACE:-Werror>>")
if(CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tessera_flags INTERFACE "$<BUILD_INTERFACE:-fpch-preprocess>")
endif()
include(tessera_sanitize)
# There are a hundred programs to link; gold takes a third of the processor time of the default.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold TESSERA_GOLD)
if(TESSERA_GOLD AND NOT TESSERA_SANITIZE)
  add_link_options(-fuse-ld=gold)
endif()

# The one precompiled header, shared by every target that uses libtorch.
if(NOT EXISTS "${PROJECT_BINARY_DIR}/tessera_pch.cpp")
  file(WRITE "${PROJECT_BINARY_DIR}/tessera_pch.cpp" "")
endif()
set(tessera_pch_headers <torch/torch.h>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # clang 14 reads libtorch 1.13.1 as C++20 only if this header comes first.
  list(PREPEND tessera_pch_headers <ATen/core/ivalue.h>)
endif()

# Tests are compiled once and run for seconds: without optimization their compile time is a third.
# The flag makes another precompiled header necessary, but in a sanitizer build, where all is
# compiled with the same flags. TESSERA_TESTING is set below tests/.
set(tessera_shared_pch OFF)
if(TESSERA_BUILD_TESTS AND TESSERA_SANITIZE)
  set(tessera_shared_pch ON)
endif()
if(NOT tessera_shared_pch)
  add_library(tessera_pch OBJECT "${PROJECT_BINARY_DIR}/tessera_pch.cpp")
  target_link_libraries(tessera_pch PRIVATE tessera_flags tessera_torch)
  target_precompile_headers(tessera_pch PRIVATE ${tessera_pch_headers})
endif()
if(TESSERA_BUILD_TESTS)
  add_library(tessera_pch_tests OBJECT "${PROJECT_BINARY_DIR}/tessera_pch.cpp")
  target_link_libraries(tessera_pch_tests PRIVATE tessera_flags tessera_torch GTest::gmock)
  if(NOT tessera_shared_pch)
    target_compile_options(tessera_pch_tests PRIVATE -O0)
  endif()
  target_precompile_headers(tessera_pch_tests PRIVATE ${tessera_pch_headers} <gmock/gmock.h>)
endif()

# The other one, for tests without libtorch. Their flags are those of the other tests' header.
if(TESSERA_BUILD_TESTS AND NOT TESSERA_SANITIZE)
  add_library(tessera_pch_plain_tests OBJECT "${PROJECT_BINARY_DIR}/tessera_pch.cpp")
  target_link_libraries(tessera_pch_plain_tests PRIVATE
    tessera_flags GTest::gmock nlohmann_json::nlohmann_json)
  target_compile_options(tessera_pch_plain_tests PRIVATE -O0)
  target_precompile_headers(tessera_pch_plain_tests PRIVATE <gmock/gmock.h> <nlohmann/json.hpp>)
endif()

function(tessera_use_torch target)
  target_link_libraries(${target} PUBLIC tessera_torch)
  if(TESSERA_SANITIZE)
    # There even an empty file with libtorch's headers takes half as long as six of ours.
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
  endif()
  if(TESSERA_TESTING AND NOT tessera_shared_pch)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  if(TESSERA_TESTING OR tessera_shared_pch)
    # For the definitions that the header was compiled with.
    target_link_libraries(${target} PUBLIC "$<BUILD_INTERFACE:GTest::gmock>")
    target_precompile_headers(${target} REUSE_FROM tessera_pch_tests)
  else()
    target_precompile_headers(${target} REUSE_FROM tessera_pch)
  endif()
endfunction()

function(tessera_add_if_present folder)
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
    add_subdirectory(${folder})
  endif()
endfunction()

function(tessera_add_library folder)
  cmake_parse_arguments(ARG "TORCH;MPI" "" "HEADERS;INTERNAL;SOURCES;DEPS;LIBS" ${ARGN})
  set(target tessera_${folder})
  list(TRANSFORM ARG_DEPS PREPEND tessera::)
  if(ARG_TORCH)
    list(APPEND ARG_LIBS tessera_torch)
  endif()
  if(ARG_MPI)
    list(APPEND ARG_LIBS tessera_mpi)
  endif()
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    if(ARG_TORCH)
      tessera_use_torch(${target})
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tessera::${folder} ALIAS ${target})
  target_link_libraries(${target} ${scope} tessera_flags ${ARG_DEPS} ${ARG_LIBS})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  target_sources(${target} ${scope} FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HEADERS})
  set_property(GLOBAL APPEND PROPERTY tessera_libraries ${target})
endfunction()

function(tessera_add_program name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND tessera::)
  target_link_libraries(${name} PUBLIC tessera_flags ${ARG_DEPS} ${ARG_LIBS})
  if(ARG_TORCH)
    tessera_use_torch(${name})
  elseif(TESSERA_TESTING AND NOT tessera_shared_pch)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# Tests need not call tessera::init, which does the same (tessera/tensor/onednn.h).
set(tessera_onednn "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")

function(tessera_add_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS;LABELS;LIBS" ${ARGN})
  set(torch "")
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  tessera_add_program(${name} ${torch} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS}
    LIBS GTest::gtest_main GTest::gmock ${ARG_LIBS})
  if(NOT ARG_TORCH AND TARGET tessera_pch_plain_tests)
    target_precompile_headers(${name} REUSE_FROM tessera_pch_plain_tests)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "unit;${ARG_LABELS}"
    ENVIRONMENT "OMP_NUM_THREADS=1;${tessera_onednn}")
  tessera_sanitize_test(${name})
endfunction()

# Root, fewer cores than ranks, and containers without cross-process copies.
set(TESSERA_MPIRUN mpirun --allow-run-as-root --oversubscribe --bind-to none
  --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none)

function(tessera_add_mpi_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "RANKS;SLOW_RANKS;SOURCES;DEPS;LABELS;LIBS;ARGS" ${ARGN})
  if(ARG_SOURCES)
    tessera_add_program(${name} TORCH
      SOURCES ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp
      DEPS ${ARG_DEPS} LIBS tessera_mpi GTest::gtest GTest::gmock ${ARG_LIBS})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foreach(ranks IN LISTS ARG_RANKS ARG_SLOW_RANKS)
    set(labels mpi ${ARG_LABELS})
    if(ranks IN_LIST ARG_SLOW_RANKS)
      list(APPEND labels slow)
    elseif(ranks GREATER_EQUAL 8) # four on each of two cores
      list(APPEND labels long)
    endif()
    add_test(NAME ${name}.${ranks}
      COMMAND ${TESSERA_MPIRUN} -n ${ranks} $<TARGET_FILE:${name}> ${ARG_ARGS})
    set_tests_properties(${name}.${ranks} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2
      LABELS "${labels}"
      ENVIRONMENT "OMP_NUM_THREADS=1;${tessera_onednn};OMPI_MCA_rmaps_base_oversubscribe=1")
  endforeach()
endfunction()
