# Target docs: the reference of the interface from the headers' comments, in build/docs/html. Needs
# Debian's package doxygen; a warning of doxygen is an error.
find_program(DOXYGEN doxygen)
if(DOXYGEN)
  configure_file("${PROJECT_SOURCE_DIR}/docs/Doxyfile.in" "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
  add_custom_target(docs COMMAND "${DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile" VERBATIM
    COMMENT "Reference of the interface: ${PROJECT_BINARY_DIR}/docs/html/index.html")
else()
  add_custom_target(docs COMMAND "${CMAKE_COMMAND}" -E echo
    "docs: doxygen is missing (Debian package doxygen); install it and configure again"
    COMMAND "${CMAKE_COMMAND}" -E false VERBATIM)
endif()
