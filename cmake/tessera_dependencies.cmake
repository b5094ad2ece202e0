# Debian's packages, found where they are installed; nothing is fetched.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Line tables are enough for back traces; full debug info of libtorch's headers
# makes the precompiled header six times as large.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Torch REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
if(TESSERA_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

# One target each, as SYSTEM: their warnings are not ours to mend.
add_library(tessera_torch INTERFACE)
add_library(tessera::torch ALIAS tessera_torch)
target_include_directories(tessera_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(tessera_torch INTERFACE ${TORCH_LIBRARIES} Threads::Threads)
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(tessera_torch INTERFACE ${torch_flags})

add_library(tessera_mpi INTERFACE)
add_library(tessera::mpi ALIAS tessera_mpi)
target_include_directories(tessera_mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
target_link_libraries(tessera_mpi INTERFACE MPI::MPI_CXX)
# Open MPI's C++ bindings warn under -Wextra.
target_compile_definitions(tessera_mpi INTERFACE OMPI_SKIP_MPICXX)
