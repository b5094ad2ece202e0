# One target each for libtorch, METIS and MPI, used by this build and, installed beside
# the package files, by projects that link the library. Imported, so that their
# headers are SYSTEM (their warnings are not ours to mend) and no path of the
# machine that built the library is written into the package.
if(NOT TARGET tessera_torch)
  add_library(tessera_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(tessera_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  # libstdc++ first: wheels export parts of a newer one (std::filesystem), which would otherwise serve
  # our calls too, mixed with the rest of the system's.
  target_link_libraries(tessera_torch INTERFACE stdc++ ${TORCH_LIBRARIES} Threads::Threads)
  separate_arguments(tessera_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(tessera_torch INTERFACE ${tessera_torch_flags})
endif()

# METIS has no package file of its own.
if(NOT TARGET tessera_metis)
  find_path(TESSERA_METIS_INCLUDE metis.h)
  find_library(TESSERA_METIS_LIBRARY metis)
  mark_as_advanced(TESSERA_METIS_INCLUDE TESSERA_METIS_LIBRARY)
  if(NOT TESSERA_METIS_INCLUDE OR NOT TESSERA_METIS_LIBRARY)
    message(FATAL_ERROR "METIS is missing (Debian package libmetis-dev)")
  endif()
  add_library(tessera_metis INTERFACE IMPORTED GLOBAL)
  target_include_directories(tessera_metis SYSTEM INTERFACE "${TESSERA_METIS_INCLUDE}")
  target_link_libraries(tessera_metis INTERFACE "${TESSERA_METIS_LIBRARY}")
endif()

if(NOT TARGET tessera_mpi)
  add_library(tessera_mpi INTERFACE IMPORTED GLOBAL)
  target_include_directories(tessera_mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
  target_link_libraries(tessera_mpi INTERFACE MPI::MPI_CXX)
  # Open MPI's C++ bindings warn under -Wextra.
  target_compile_definitions(tessera_mpi INTERFACE OMPI_SKIP_MPICXX)
endif()
