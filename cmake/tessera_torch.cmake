# find_package(Torch), also for a libtorch that was built for CUDA on a machine
# without the CUDA toolkit: its own package file stops there, though all that
# runs on the processor (headers, libtorch_cpu, libc10) is complete.
find_file(TESSERA_TORCH_CONFIG TorchConfig.cmake
  PATHS ${CMAKE_PREFIX_PATH} ${Torch_DIR} PATH_SUFFIXES Torch share/cmake/Torch lib/cmake/Torch
  NO_DEFAULT_PATH)
if(TESSERA_TORCH_CONFIG)
  get_filename_component(tessera_torch_home "${TESSERA_TORCH_CONFIG}/../../../.." ABSOLUTE)
  find_package(CUDAToolkit QUIET)
endif()

if(TESSERA_TORCH_CONFIG AND EXISTS "${tessera_torch_home}/lib/libtorch_cuda.so"
   AND NOT CUDAToolkit_FOUND)
  message(STATUS "libtorch in ${tessera_torch_home} was built for CUDA; without the CUDA toolkit "
    "its processor part is used")
  set(TORCH_INCLUDE_DIRS
    "${tessera_torch_home}/include" "${tessera_torch_home}/include/torch/csrc/api/include")
  set(TORCH_LIBRARIES
    "${tessera_torch_home}/lib/libtorch_cpu.so" "${tessera_torch_home}/lib/libc10.so")
  set(TORCH_CXX_FLAGS "")
elseif(TESSERA_TORCH_CONFIG)
  # Its package file looks for Caffe2 and libc10 in the system's folders before its own: where
  # Debian's libtorch is installed too, a program would load both.
  set(tessera_prefix_path "${CMAKE_PREFIX_PATH}")
  list(PREPEND CMAKE_PREFIX_PATH "${tessera_torch_home}")
  find_package(Torch REQUIRED)
  set(CMAKE_PREFIX_PATH "${tessera_prefix_path}")
else()
  find_package(Torch REQUIRED)
endif()

# Of the headers: a library built with one version does not run with another.
set(tessera_torch_version "")
foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
  foreach(header IN ITEMS torch/headeronly/version.h torch/version.h)
    if(tessera_torch_version STREQUAL "" AND EXISTS "${folder}/${header}")
      file(STRINGS "${folder}/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" lines "${lines}")
      list(JOIN lines "." tessera_torch_version)
    endif()
  endforeach()
endforeach()
