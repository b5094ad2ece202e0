# Debian packages of an existing build, without building anything:
#   cpack -G DEB --config build/CPackConfig.cmake
#   tessera         program, tokenizer, man pages, completions
#   libtessera-dev  libraries, headers, package files (all libraries must be built: ninja tessera_libraries)
# Which packages they depend on dpkg-shlibdeps reads from the programs; what they start, and what the
# headers include, is said here. A build against another libtorch than Debian's has no such package,
# which is an error of dpkg-shlibdeps.
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR "Tessera contributors")
set(CPACK_PACKAGE_CONTACT "Tessera contributors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains models that are too large for one device")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)

set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
  "Tessera trains models that are too large for one device: pipeline, tensor and data parallelism
 over ranks of MPI, on libtorch. This package has the program tessera.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libopenblas0-openmp, openssh-client, bible-kjv")

set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Libraries, headers and CMake files of Tessera, for programs that train with it.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libtorch-dev, libopenmpi-dev, libspdlog-dev, nlohmann-json3-dev")
include(CPack)
