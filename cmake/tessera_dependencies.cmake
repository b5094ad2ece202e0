# Debian's packages, found where they are installed; nothing is fetched.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Line tables are enough for back traces; full debug info of libtorch's headers
# makes the precompiled header six times as large.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(ZLIB REQUIRED)
include(tessera_torch)
find_package(MPI REQUIRED COMPONENTS CXX)
if(TESSERA_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
include(tessera_imports)
add_library(tessera::torch ALIAS tessera_torch)
add_library(tessera::mpi ALIAS tessera_mpi)
